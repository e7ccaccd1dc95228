package cdi_test

import (
	"bufio"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"tags.cncf.io/container-device-interface/specs-go"

	"github.com/gpucdi/gpucdi/cdi"
	"github.com/gpucdi/gpucdi/internal/host"
)

// writerDir is the environment variable with the directory in which this test binary writes specs until it is killed.
const writerDir = "GPUCDI_TEST_WRITER_DIR"

func TestMain(m *testing.M) {
	if dir := os.Getenv(writerDir); dir != "" {
		fmt.Fprintln(os.Stderr, putForever(dir))
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// twoSpecs returns specs of different sizes, neither a prefix of the other.
func twoSpecs() (small, large *specs.Spec) {
	device := specs.Device{Name: "GPU-a", ContainerEdits: specs.ContainerEdits{Env: []string{"A=b"}}}
	small = &specs.Spec{Version: "0.5.0", Kind: cdi.AgentKind, Devices: []specs.Device{device}}
	device.ContainerEdits.Env = []string{"A=" + strings.Repeat("c", 64<<10)}
	large = &specs.Spec{Version: "0.5.0", Kind: cdi.AgentKind, Devices: []specs.Device{device}}
	return small, large
}

func putForever(dir string) error {
	file := cdi.AgentFile(dir, host.NewRoot("/"))
	small, large := twoSpecs()
	for i := 0; ; i++ {
		for _, spec := range []*specs.Spec{small, large} {
			if _, err := file.Put(spec); err != nil {
				return err
			}
		}
		if i == 0 {
			fmt.Println("started")
		}
	}
}

// A killed writer leaves the old spec or the new one, and at most one temporary file.
func TestKilledWriterLeavesCompleteSpec(t *testing.T) {
	dir := t.TempDir()
	small, large := twoSpecs()
	complete := map[string]bool{}
	for _, spec := range []*specs.Spec{small, large} {
		data, err := cdi.JSON.Marshal(spec)
		if err != nil {
			t.Fatal(err)
		}
		complete[string(data)] = true
	}
	for range 20 {
		killWriter(t, dir)
		data, err := os.ReadFile(filepath.Join(dir, "gpucdi.dev-gpu.json"))
		if err != nil || !complete[string(data)] {
			t.Fatalf("got an incomplete spec of %d bytes, %v", len(data), err)
		}
		age(t, dir)
		if names, err := host.Names(dir, 9); err != nil || len(names) > 2 {
			t.Fatalf("got files %v, %v", names, err)
		}
	}
	if _, err := cdi.AgentFile(dir, host.NewRoot("/")).Put(small); err != nil {
		t.Error(err)
	}
}

// killWriter runs a writer and kills it at a random time.
func killWriter(t *testing.T, dir string) {
	t.Helper()
	writer := exec.Command(os.Args[0])
	writer.Env = append(os.Environ(), writerDir+"="+dir)
	writer.Stderr = t.Output()
	stdout, err := writer.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := writer.Start(); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(stdout).ReadString('\n')
	time.Sleep(time.Duration(rand.IntN(20)) * time.Millisecond)
	if err := writer.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = writer.Wait() // the error is that it was killed
	if err != nil {
		t.Fatalf("writer printed %q, %v", line, err)
	}
}

// age sets the times of all files to the past, so that temporary files are stale.
func age(t *testing.T, dir string) {
	t.Helper()
	names, err := host.Names(dir, 99)
	if err != nil {
		t.Fatal(err)
	}
	old := time.Now().Add(-2 * time.Hour)
	for _, name := range names {
		if err := os.Chtimes(filepath.Join(dir, name), old, old); err != nil {
			t.Fatal(err)
		}
	}
}
