package product

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"
)

// GoFlags is the variable that makes the go command build the product with the
// race detector, if this process has it.
func GoFlags() string {
	flags := "GOFLAGS=" + os.Getenv("GOFLAGS")
	if hasRaceDetector() {
		flags += " -race"
	}
	return flags
}

// Raced reports whether Build builds the product with the race detector, which takes
// several times the memory.
func Raced() bool {
	return hasRaceDetector() || slices.Contains(strings.Fields(os.Getenv("GOFLAGS")), "-race")
}

// hasRaceDetector reports whether this process has it.
func hasRaceDetector() bool {
	info, _ := debug.ReadBuildInfo()
	return info != nil && slices.Contains(info.Settings, debug.BuildSetting{Key: "-race", Value: "true"})
}

// RaceLog is the variable that lets programs say in files in dir that they have
// seen a race. One that just ends has an exit code for it; the process that holds
// the driver is killed, and what it has written to the agent goes with it.
// They do not wait a second at their end for races that might still come.
func RaceLog(dir string) string {
	return "GORACE=atexit_sleep_ms=0 log_path=" + filepath.Join(dir, "race")
}

// Races is what RaceLog has led to in dir; nil when nobody has seen a race.
func Races(dir string) (races error) {
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
