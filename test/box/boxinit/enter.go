package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/gpucdi/gpucdi/test/box/internal/spec"
)

// namespaces are the namespaces of a box, in the order in which they are joined. All are opened before the first is
// joined, because the machine's /proc is not visible in the mount namespace.
var namespaces = []string{"cgroup", "ipc", "uts", "net", "pid", "mnt"}

// enter runs boxinit with args in the box and forwards signals to it. The kernel kills it when this process dies.
func enter(dir string, args []string) error {
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
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("creating a socket for boxinit %s: %w", args[0], err)
	}
	child, parent := os.NewFile(uintptr(pair[0]), "child"), os.NewFile(uintptr(pair[1]), "parent")
	cmd := exec.Command("/proc/self/exe", args...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.ExtraFiles = []*os.File{child}
	if err := errors.Join(cmd.Start(), child.Close()); err != nil {
		return fmt.Errorf("starting boxinit %s in the box: %w", args[0], err)
	}
	go func() { // see dieWithParent
		defer parent.Close()
		_, _ = io.CopyN(parent, parent, 1)
	}()
	go func() { // runs until the process exits
		for sig := range signals {
			_ = cmd.Process.Signal(sig)
		}
	}()
	var exit *exec.ExitError
	if err := cmd.Wait(); errors.As(err, &exit) {
		os.Exit(exitCode(exit))
	} else if err != nil {
		return fmt.Errorf("waiting for boxinit %s: %w", args[0], err)
	}
	return nil
}

// dieWithParent requests that the kernel kill this process when its parent dies. SysProcAttr.Pdeathsig would kill it
// immediately: Go considers the parent dead because getppid returns 0 for a parent in another PID namespace. The parent
// may have died before the request, and a dying process keeps its files open for a while. So dieWithParent then waits
// for a byte that only a parent that still runs sends back over the socket at file descriptor 3.
func dieWithParent() error {
	const fd = 3
	if err := unix.Prctl(unix.PR_SET_PDEATHSIG, uintptr(syscall.SIGKILL), 0, 0, 0); err != nil {
		return fmt.Errorf("setting the parent death signal: %w", err)
	}
	parent := os.NewFile(fd, "parent")
	defer parent.Close()
	var b [1]byte
	if _, err := parent.Write(b[:]); err != nil {
		return fmt.Errorf("checking the parent process: %w", err)
	}
	if _, err := parent.Read(b[:]); err != nil {
		return fmt.Errorf("checking the parent process, which may have ended: %w", err)
	}
	return nil
}

// execCommand replaces this process, which is in the box, with the command.
func execCommand(name string, args []string) error {
	if err := dieWithParent(); err != nil {
		return err
	}
	program, err := exec.LookPath(name)
	if err != nil {
		return fmt.Errorf("finding a command in the box: %w", err)
	}
	err = syscall.Exec(program, append([]string{name}, args...), os.Environ())
	return fmt.Errorf("starting %s in the box: %w", program, err)
}

func joinNamespaces(pid int) error {
	files := make([]*os.File, 0, len(namespaces))
	for _, ns := range namespaces {
		f, err := os.Open(fmt.Sprintf("/proc/%d/ns/%s", pid, ns))
		if err != nil {
			return fmt.Errorf("opening the namespaces of the box, which may have ended: %w", err)
		}
		defer f.Close()
		files = append(files, f)
	}
	// If the box was started in a chroot, the root of its mount namespace is not the root of its PID 1.
	root, err := os.Open(fmt.Sprintf("/proc/%d/root", pid))
	if err != nil {
		return fmt.Errorf("opening the box's root: %w", err)
	}
	defer root.Close()
	// setns to a mount namespace requires that the thread does not share its root.
	if err := unix.Unshare(unix.CLONE_FS); err != nil {
		return fmt.Errorf("unsharing the root: %w", err)
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

// exitCode returns the exit code that a shell would report.
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
