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

// messageLimit is how many bytes of a program's output an error has room for.
const messageLimit = 512

// LoadModule loads a kernel module with the node's own modprobe, run within the root: only that one
// uses the node's modules and its admin's settings. A blacklisted module is not loaded. When ctx
// ends, modprobe and its children are killed.
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
	return fmt.Errorf("loading the kernel module %s: the node has none of %s below %s", name, strings.Join(modprobes, ", "), r.dir)
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
		return nil // modprobe succeeded; a command that it started still runs
	}
	if err != nil && ctx.Err() != nil {
		return fmt.Errorf("%w: %w", ctx.Err(), err)
	}
	if said := Printable(out.String(), messageLimit); err != nil && said != "" {
		return fmt.Errorf("%w: %s", err, said)
	}
	return err
}

// KillWithChildren makes the end of cmd's context kill the children of the program too, and bounds
// how long their use of its output delays cmd.Wait. It must be called before the program starts.
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
