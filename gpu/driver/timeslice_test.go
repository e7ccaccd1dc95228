package driver

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gpucdi/gpucdi/gpu"
	"github.com/gpucdi/gpucdi/internal/host"
)

const testGPU = "GPU-4fbdcb86-5b5c-4b5f-8c3a-0123456789ab"

// slicer returns a TimeSlicer for a node whose nvidia-smi is a shell script. If script is empty, the node has none.
func slicer(t *testing.T, script string) (s *TimeSlicer, root string) {
	t.Helper()
	root = t.TempDir()
	files := map[string]string{"usr/lib64/" + host.NVMLName: ""}
	if script != "" {
		files["usr/bin/nvidia-smi"] = "#!/bin/sh\nexport LD_PRELOAD=\n" + script
	}
	for name, text := range files {
		path := filepath.Join(root, name)
		err := os.MkdirAll(filepath.Dir(path), 0o755)
		if err == nil {
			err = os.WriteFile(path, []byte(text), 0o755)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return &TimeSlicer{Node: host.NewRoot(root)}, root
}

func TestTimeSlice(t *testing.T) {
	s, root := slicer(t, `echo "$@" >> "${0%/*}/calls"`)
	for _, slice := range gpu.TimeSlices {
		if err := s.Set(t.Context(), testGPU, slice); err != nil {
			t.Error(err)
		}
	}
	calls, err := os.ReadFile(filepath.Join(root, "usr/bin/calls"))
	if err != nil {
		t.Fatal(err)
	}
	want := ""
	for _, number := range []string{"0", "1", "2", "3"} {
		want += "compute-policy -i " + testGPU + " --set-timeslice " + number + "\n"
	}
	if string(calls) != want {
		t.Errorf("calls\n%swant\n%s", calls, want)
	}
}

// If only a driver container has the device nodes, the worker executes nvidia-smi.
func TestTimeSliceInDriverContainer(t *testing.T) {
	_, root := slicer(t, "exit")
	container := filepath.Join(root, "run/nvidia/driver")
	for _, dir := range []string{"usr", "dev"} {
		if err := os.MkdirAll(filepath.Join(container, dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	err := errors.Join(os.Remove(filepath.Join(container, "usr")), os.Rename(filepath.Join(root, "usr"), filepath.Join(container, "usr")),
		os.WriteFile(filepath.Join(container, "dev/nvidiactl"), nil, 0o600))
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	s := &TimeSlicer{Node: host.NewRoot(root), Worker: "/gpucdi-nvml", run: func(_ context.Context, _ host.DriverRoot, program string, args ...string) error {
		got = append([]string{program}, args...)
		return nil
	}}
	if err := s.Set(t.Context(), testGPU, gpu.TimeSlices[0]); err != nil {
		t.Fatal(err)
	}
	want := []string{"/gpucdi-nvml", "--devices", container + "/dev", container + "/usr/bin/nvidia-smi",
		"compute-policy", "-i", testGPU, "--set-timeslice", "0"}
	if !slices.Equal(got, want) {
		t.Errorf("runs %q, want %q", got, want)
	}
}

func TestTimeSliceFails(t *testing.T) {
	for name, tc := range map[string]struct {
		script      string
		slice       gpu.TimeSlice
		want        string
		unsupported bool
	}{
		"not supported": {"echo Not Supported; exit 3", gpu.TimeSliceShort, "Not Supported", true},
		"failure":       {"printf '\\033[31mno\\n'; head -c 100000 /dev/zero; exit 4", gpu.TimeSliceShort, "exit status 4", false},
		"no program":    {"", gpu.TimeSliceShort, "no nvidia-smi", false},
		"unknown":       {"exit 0", "Tiny", `unknown time slice "Tiny"`, false},
	} {
		s, _ := slicer(t, tc.script)
		err := s.Set(t.Context(), testGPU, tc.slice)
		if err == nil || !strings.Contains(err.Error(), tc.want) || errors.Is(err, errors.ErrUnsupported) != tc.unsupported {
			t.Errorf("%s: error %v", name, err)
			continue
		}
		if text := err.Error(); len(text) > 600 || strings.ContainsAny(text, "\x1b\x00") {
			t.Errorf("%s: error %q", name, text)
		}
	}
}

// If nvidia-smi hangs in the kernel, Set returns when ctx ends, and fails until nvidia-smi exits. Other GPUs are not
// affected.
func TestTimeSliceHangs(t *testing.T) {
	s, _ := slicer(t, "exit 0")
	end := make(chan struct{})
	s.run = func(context.Context, host.DriverRoot, string, ...string) error { <-end; return nil }
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	if err := s.Set(ctx, testGPU, gpu.TimeSliceLong); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("error %v, want a timeout", err)
	}
	if err := s.Set(t.Context(), testGPU, gpu.TimeSliceLong); err == nil || !errors.Is(err, host.ErrNotExited) {
		t.Errorf("error %v, want one about the earlier call", err)
	}
	s.run = nil
	if err := s.Set(t.Context(), "GPU-other", gpu.TimeSliceLong); err != nil {
		t.Error(err)
	}
	close(end)
	for start := time.Now(); s.Set(t.Context(), testGPU, gpu.TimeSliceLong) != nil; time.Sleep(time.Millisecond) {
		if time.Since(start) > 30*time.Second {
			t.Fatal("refused although the program has exited")
		}
	}
}
