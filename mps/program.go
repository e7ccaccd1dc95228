package mps

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os/exec"
	"path"
	"strings"

	"github.com/gpucdi/gpucdi/internal/host"
)

const (
	controlName = "nvidia-cuda-mps-control"
	// outputLimit bounds the output of the control program, and messageLimit the part of it in an error, in bytes.
	outputLimit  = 1 << 20
	messageLimit = 256
)

// Program is the driver's MPS control program.
type Program struct {
	Node       host.Root
	DriverRoot string // path on the node; empty: search the known driver roots
	Library    string // path of libnvidia-ml.so.1 on the node; empty: search the driver root
}

// find returns the driver root and the path of the program below it.
func (p Program) find() (host.DriverRoot, string, error) {
	root, err := host.FindDriver(p.Node, p.DriverRoot, p.Library)
	if err != nil {
		return host.DriverRoot{}, "", err
	}
	for _, dir := range root.Programs {
		name := path.Join(dir, controlName)
		if _, err := root.Stat(name); errors.Is(err, fs.ErrNotExist) {
			continue
		}
		resolved, err := root.Resolve(name)
		if err != nil {
			return host.DriverRoot{}, "", fmt.Errorf("finding %s: %w", controlName, err)
		}
		return root, resolved, nil
	}
	return host.DriverRoot{}, "", fmt.Errorf("finding %[1]s: no %[1]s in the driver root %[2]s, tried %[3]q; install the driver package that contains it",
		controlName, root, root.Programs)
}

// run runs the control program as a client of the daemon whose pipe directory is dir, and waits for its exit even after
// ctx has ended. It uses this process's loader and libc: the program needs no other library.
func (p Program) run(ctx context.Context, dir string, args ...string) (string, error) {
	root, program, err := p.find()
	if err != nil {
		return "", err
	}
	var out, problem limitedBuffer
	cmd := exec.CommandContext(ctx, root.LocalPath(program), append([]string{"-p", "3"}, args...)...)
	cmd.Dir = "/"
	cmd.Env = []string{pipeVariable + "=" + dir}
	cmd.Stdout, cmd.Stderr = &out, &problem
	host.KillWithChildren(cmd)
	if err := cmd.Run(); err != nil {
		text := problem.String()
		if text == "" {
			text = out.String()
		}
		return "", fmt.Errorf("running %s %s: %w: %s", controlName, strings.Join(args, " "), err, host.Printable(text, messageLimit))
	}
	return out.String(), nil
}

// pipeVariable is the environment variable with the pipe directory of the daemon, a server or a namespace.
const pipeVariable = "CUDA_MPS_PIPE_DIRECTORY"

// limitedBuffer keeps the first outputLimit bytes.
type limitedBuffer struct{ strings.Builder }

// Write implements io.Writer.
func (b *limitedBuffer) Write(data []byte) (int, error) {
	b.Builder.Write(data[:min(len(data), outputLimit-b.Len())])
	return len(data), nil
}

// probe creates a CUDA context as a client of the server whose pipe directory is dir, in a process of the driver worker
// executable. It waits for the exit of the process even after ctx has ended.
func (p Program) probe(ctx context.Context, worker, dir string) error {
	root, err := host.FindDriver(p.Node, p.DriverRoot, p.Library)
	if err != nil {
		return err
	}
	libcuda, err := root.Resolve(path.Join(root.LibraryDir, "libcuda.so.1"))
	if err != nil {
		return fmt.Errorf("finding libcuda: %w", err)
	}
	var out host.Output
	cmd := exec.CommandContext(ctx, worker, "--probe-cuda", root.LocalPath(libcuda))
	cmd.Dir = "/"
	cmd.Env = []string{pipeVariable + "=" + dir}
	cmd.Stdout, cmd.Stderr = &out, &out
	host.KillWithChildren(cmd)
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("%w: %s", err, host.Printable(out.String(), messageLimit))
	}
	return nil
}
