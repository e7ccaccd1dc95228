package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/gpucdi/gpucdi/test/box/internal/spec"
)

// The namespaces of a box. mnt comes last: it takes the machine's /proc away.
var namespaces = []string{"cgroup", "ipc", "uts", "net", "pid", "mnt"}

// enter runs a command in the box as if PID 1 had started it, passes signals on to it, and
// takes it along when it is killed itself.
func enter(dir, name string, args []string) error {
	s, err := spec.Read(dir)
	if err != nil {
		return err
	}
	if err := joinCgroups(s.Cgroups, spec.Leaf); err != nil {
		return err
	}
	if err := joinNamespaces(s.Init); err != nil {
		return err
	}
	signals := make(chan os.Signal, 8)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP, syscall.SIGQUIT, syscall.SIGUSR1, syscall.SIGUSR2)
	cmd := exec.Command("/proc/self/exe", append([]string{"run", name}, args...)...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("starting %s in the box: %w", name, err)
	}
	go func() { // ends with the process
		for sig := range signals {
			_ = cmd.Process.Signal(sig)
		}
	}()
	var exit *exec.ExitError
	if err := cmd.Wait(); errors.As(err, &exit) {
		os.Exit(exitCode(exit))
	} else if err != nil {
		return fmt.Errorf("waiting for %s: %w", name, err)
	}
	return nil
}

// become turns this process, which is in the box, into the command. It asks to die with its
// parent itself: SysProcAttr.Pdeathsig takes a parent in another PID namespace for dead.
func become(name string, args []string) error {
	if err := unix.Prctl(unix.PR_SET_PDEATHSIG, uintptr(syscall.SIGKILL), 0, 0, 0); err != nil {
		return fmt.Errorf("asking to end with boxinit: %w", err)
	}
	program, err := exec.LookPath(name)
	if err != nil {
		return fmt.Errorf("looking for a command in the box: %w", err)
	}
	err = syscall.Exec(program, append([]string{name}, args...), os.Environ())
	return fmt.Errorf("starting %s in the box: %w", program, err)
}

func joinNamespaces(pid int) error {
	files := make([]*os.File, 0, len(namespaces))
	for _, ns := range namespaces {
		f, err := os.Open(fmt.Sprintf("/proc/%d/ns/%s", pid, ns))
		if err != nil {
			return fmt.Errorf("opening the box's namespaces (is it still up?): %w", err)
		}
		defer f.Close()
		files = append(files, f)
	}
	// The root of a mount namespace is not that of PID 1 when the box was made in a chroot.
	root, err := os.Open(fmt.Sprintf("/proc/%d/root", pid))
	if err != nil {
		return fmt.Errorf("opening the box's root: %w", err)
	}
	defer root.Close()
	// A thread that shares its root with others may not change its mount namespace.
	if err := unix.Unshare(unix.CLONE_FS); err != nil {
		return fmt.Errorf("letting go of the shared root: %w", err)
	}
	for _, f := range files {
		if err := unix.Setns(int(f.Fd()), 0); err != nil {
			return fmt.Errorf("joining %s: %w", f.Name(), err)
		}
	}
	if err := errors.Join(root.Chdir(), unix.Chroot(".")); err != nil {
		return fmt.Errorf("entering the box's root: %w", err)
	}
	return nil
}

// exitCode tells how a command ended the way a shell does.
func exitCode(exit *exec.ExitError) int {
	var status syscall.WaitStatus
	if ws, ok := exit.Sys().(syscall.WaitStatus); ok {
		status = ws
	}
	if status.Signaled() {
		return 128 + int(status.Signal())
	}
	return exit.ExitCode()
}
