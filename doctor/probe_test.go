package doctor

import (
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
)

// The test requires no GPU: /bin/sh replaces the driver worker, since any program linked to glibc runs the loader.
func TestProbe(t *testing.T) {
	var out strings.Builder
	if err := Probe(t.Context(), "/bin/sh", []string{"/dev/null", "/dev/nvidia-none", "libm.so.6", "libnvidia-none.so.1"}, &out); err != nil {
		t.Fatal(err)
	}
	var found contents
	if err := json.Unmarshal([]byte(out.String()), &found); err != nil {
		t.Fatal(err)
	}
	if found.Nodes["/dev/null"] != 0 || found.Nodes["/dev/nvidia-none"] != syscall.ENOENT || len(found.Nodes) != 2 {
		t.Errorf("nodes: %v", found.Nodes)
	}
	if found.Libraries["libm.so.6"] != "" || found.Libraries["libnvidia-none.so.1"] != "libnvidia-none.so.1: cannot open shared object file" {
		t.Errorf("libraries: %v", found.Libraries)
	}
}

// In an image without glibc's loader, the driver worker cannot be executed: the error is that of a missing program.
func TestProbeWithoutLoader(t *testing.T) {
	if _, err := findLibrary(t.Context(), "/nonexistent/gpucdi-nvml", cudaName); err == nil || !strings.Contains(err.Error(), "no such file") {
		t.Errorf("error %v", err)
	}
}

// The loader is that of the image: its output may be large, and a child may keep the output open.
func TestRunLoader(t *testing.T) {
	dir := t.TempDir()
	run := func(script string) (loaded, printed string, err error) {
		program := filepath.Join(dir, "loader")
		if err := os.WriteFile(program, []byte("#!/bin/sh\ncd "+dir+"\n"+script), 0o700); err != nil {
			t.Fatal(err)
		}
		return runLoader(t.Context(), program)
	}
	loaded, printed, err := run("head -c 1000000 /dev/zero | tr '\\0' x; head -c 1000000 /dev/zero | tr '\\0' y >&2")
	if len(loaded) > 1<<16 || len(printed) > 1<<16 || !strings.HasPrefix(loaded, "x") || !strings.HasPrefix(printed, "y") || err != nil {
		t.Errorf("large output: %d and %d bytes, %v", len(loaded), len(printed), err)
	}
	if text := loaderError(cudaName, printed, err).Error(); len(text) > 2*textLimit {
		t.Errorf("large output: error of %d bytes", len(text))
	}
	if _, _, err := run("sleep 60 & echo $! > child"); !errors.Is(err, exec.ErrWaitDelay) {
		t.Errorf("a child keeps the output open: %v", err)
	}
	child, err := os.ReadFile(filepath.Join(dir, "child"))
	if err != nil {
		t.Fatal(err)
	}
	if pid, _ := strconv.Atoi(strings.TrimSpace(string(child))); pid > 1 {
		_ = syscall.Kill(pid, syscall.SIGKILL)
	}
}
