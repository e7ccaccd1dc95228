package driver

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os/exec"
	"path"
	"slices"
	"strconv"

	"github.com/gpucdi/gpucdi/gpu"
	"github.com/gpucdi/gpucdi/internal/host"
)

const (
	smiName = "nvidia-smi"
	// smiNotSupported is the exit status of nvidia-smi for a feature that a GPU lacks.
	smiNotSupported = 3
	// smiMessageLimit bounds the output of nvidia-smi in an error, in bytes.
	smiMessageLimit = 256
)

// TimeSlicer sets the time slices of GPUs. It is safe for concurrent use.
type TimeSlicer struct {
	Node       host.Root
	DriverRoot string // path on the node; empty: search the known driver roots
	Library    string // path of libnvidia-ml.so.1 on the node; empty: search the driver root
	Worker     string // path of the driver worker, gpucdi-nvml

	run   func(ctx context.Context, root host.DriverRoot, program string, args ...string) error // nil: runSMI
	calls host.Calls                                                                            // by UUID of the GPU
}

// Set sets the time slice of a GPU with the driver's nvidia-smi, because NVML has no function for it. It returns when
// ctx ends, even if nvidia-smi hangs in the kernel. Until that nvidia-smi has exited, further calls for this GPU fail. The
// error wraps errors.ErrUnsupported if the GPU or the driver has no time slices.
func (s *TimeSlicer) Set(ctx context.Context, uuid string, t gpu.TimeSlice) error {
	number := slices.Index(gpu.TimeSlices, t)
	if number < 0 {
		return fmt.Errorf("unknown time slice %q; use one of %q", t, gpu.TimeSlices)
	}
	root, err := host.FindDriver(s.Node, s.DriverRoot, s.Library)
	if err != nil {
		return err
	}
	program, err := findSMI(root)
	if err != nil {
		return err
	}
	args := []string{"compute-policy", "-i", uuid, "--set-timeslice", strconv.Itoa(number)}
	if devices := root.DevicesDir(s.Node); devices != "" {
		program, args = s.Worker, append([]string{"--devices", devices, program}, args...)
	}
	run := s.run
	if run == nil {
		run = runSMI
	}
	err = s.calls.Do(ctx, uuid, func() error { return run(ctx, root, program, args...) })
	switch {
	case errors.Is(err, host.ErrNotExited):
		return fmt.Errorf("starting %s for this GPU: %w", smiName, err)
	case err != nil && ctx.Err() != nil:
		return fmt.Errorf("waiting for %s: %w", smiName, context.Cause(ctx))
	}
	return err
}

// findSMI returns the path of nvidia-smi in this process's file system.
func findSMI(root host.DriverRoot) (string, error) {
	for _, dir := range root.Programs {
		name := path.Join(dir, smiName)
		if _, err := root.Stat(name); errors.Is(err, fs.ErrNotExist) {
			continue
		}
		resolved, err := root.Resolve(name)
		if err != nil {
			return "", fmt.Errorf("finding %s: %w", smiName, err)
		}
		return root.LocalPath(resolved), nil
	}
	return "", fmt.Errorf("finding %[1]s: no %[1]s in the driver root %[2]s, tried %[3]q; install the driver's programs", smiName, root, root.Programs)
}

// runSMI runs the node's nvidia-smi with this process's loader and libc, which may differ from the node's. NVML is the
// only library from the driver root: it is preloaded, so the loader finds it by its SONAME.
func runSMI(ctx context.Context, root host.DriverRoot, program string, args ...string) error {
	var out host.Output
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Dir = "/"
	cmd.Env = []string{"LD_PRELOAD=" + root.LocalPath(root.NVML)}
	cmd.Stdout, cmd.Stderr = &out, &out
	host.KillWithChildren(cmd)
	err := cmd.Run()
	if err == nil {
		return nil
	}
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) && exit.ExitCode() == smiNotSupported {
		err = errors.ErrUnsupported
	}
	if errors.Is(err, fs.ErrNotExist) {
		err = fmt.Errorf("%w: the agent's image lacks the loader of this program", err)
	}
	return fmt.Errorf("running %s: %w: %s", program, err, host.Printable(out.String(), smiMessageLimit))
}
