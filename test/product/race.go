package product

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
)

// raceVariable is the environment variable that, if not empty, enables the race detector in the programs under test.
// The tests themselves are built without it, so that they use the same compiled Kubernetes packages as the test nodes.
const raceVariable = "TEST_RACE"

// GoFlags returns the environment variable GOFLAGS for building the product, with -race if RaceEnabled.
func GoFlags() string {
	flags := "GOFLAGS=" + os.Getenv("GOFLAGS")
	if RaceEnabled() {
		flags += " -race"
	}
	return flags
}

// RaceEnabled reports whether the product is built with the race detector, which multiplies its memory usage.
func RaceEnabled() bool { return os.Getenv(raceVariable) != "" }

// RaceLog returns the GORACE variable that makes programs report races to files in dir. The exit code is not enough,
// because the driver worker is killed. atexit_sleep_ms=0 removes the delay of 1 s at exit.
func RaceLog(dir string) string {
	return "GORACE=atexit_sleep_ms=0 log_path=" + filepath.Join(dir, "race")
}

// RaceReports returns the races reported in dir, see RaceLog; nil if there are none.
func RaceReports(dir string) (races error) {
	logs, err := filepath.Glob(filepath.Join(dir, "race.*"))
	if err != nil {
		return err
	}
	for _, name := range logs {
		text, err := os.ReadFile(name)
		races = errors.Join(races, err, fmt.Errorf("%s: %s", name, text))
	}
	return races
}
