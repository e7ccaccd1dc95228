package host

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"strings"
	"syscall"
)

// modprobes are the usual paths of modprobe on a node.
var modprobes = []string{"/usr/sbin/modprobe", "/sbin/modprobe", "/usr/bin/modprobe", "/run/current-system/sw/bin/modprobe"}

// messageLimit is the maximum length of a program's output in an error, in bytes.
const messageLimit = 512

// LoadModule loads a kernel module with the node's modprobe in a chroot, so that the node's modules and modprobe.d
// apply. It does not load a blacklisted module. When ctx ends, modprobe and its children are killed.
func (r Root) LoadModule(ctx context.Context, name string) error {
	for _, program := range modprobes {
		_, err := r.Stat(program)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return fmt.Errorf("loading the kernel module %s: %w", name, err)
		}
		if err := r.modprobe(ctx, program, name); err != nil {
			return fmt.Errorf("loading the kernel module %s: running the node's %s: %w", name, program, err)
		}
		return nil
	}
	return fmt.Errorf("loading the kernel module %s: no modprobe found below %s, tried %s", name, r.dir, strings.Join(modprobes, ", "))
}

func (r Root) modprobe(ctx context.Context, program, module string) error {
	var out Output
	cmd := exec.CommandContext(ctx, program, "--use-blacklist", module)
	cmd.Dir = "/"
	cmd.Env = []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin"}
	cmd.Stdout, cmd.Stderr = &out, &out
	cmd.SysProcAttr = &syscall.SysProcAttr{Chroot: r.dir}
	KillWithChildren(cmd)
	err := cmd.Run()
	if errors.Is(err, exec.ErrWaitDelay) {
		return nil // modprobe succeeded, but a child is still running
	}
	if err != nil && ctx.Err() != nil {
		return fmt.Errorf("%w: %w", ctx.Err(), err)
	}
	if output := Printable(out.String(), messageLimit); err != nil && output != "" {
		return fmt.Errorf("%w: %s", err, output)
	}
	return err
}

// KillWithChildren configures cmd to kill its process group when its context ends, and limits how long children that
// keep the output open delay cmd.Wait. It must be called before cmd is started.
func KillWithChildren(cmd *exec.Cmd) {
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	cmd.SysProcAttr.Setpgid = true
	cmd.Cancel = func() error {
		err := syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
		if errors.Is(err, syscall.ESRCH) {
			return os.ErrProcessDone
		}
		return err
	}
	cmd.WaitDelay = OutputDelay
}
