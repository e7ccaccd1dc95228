package main

import (
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/gpucdi/gpucdi/test/box/internal/spec"
)

// initBox is the first stage of PID 1: it joins the box's cgroups, and creates a cgroup namespace
// with them as root. It ends with an exec, because only this thread is in the namespace.
func initBox(dir string) error {
	s, err := spec.Read(dir)
	if err != nil {
		return err
	}
	if err := joinCgroups(s.Cgroups, ""); err != nil {
		return err
	}
	if err := unix.Unshare(unix.CLONE_NEWCGROUP); err != nil {
		return fmt.Errorf("creating a cgroup namespace: %w", err)
	}
	if err := joinCgroups(s.Cgroups, spec.Leaf); err != nil {
		return err
	}
	err = syscall.Exec("/proc/self/exe", []string{"boxinit", "inside", dir}, nil)
	return fmt.Errorf("executing the second stage of PID 1: %w", err)
}

// inside is the second stage of PID 1: it builds the box, writes to the pipe at file descriptor 3
// when the box is ready, and reaps orphans until it is killed.
func inside(dir string) error {
	ready := os.NewFile(3, "ready")
	s, err := spec.Read(dir)
	if err != nil {
		return err
	}
	if err := unix.Sethostname([]byte(s.Hostname)); err != nil {
		return fmt.Errorf("setting the host name %s: %w", s.Hostname, err)
	}
	if err := loopbackUp(); err != nil {
		return fmt.Errorf("bringing the box's loopback interface up: %w", err)
	}
	if err := buildRoot(s); err != nil {
		return err
	}
	children := make(chan os.Signal, 1)
	signal.Notify(children, syscall.SIGCHLD)
	if _, err := ready.Write([]byte{1}); err != nil {
		return fmt.Errorf("reporting that the box is ready: %w", err)
	}
	ready.Close()
	for range children {
		for {
			pid, err := syscall.Wait4(-1, nil, syscall.WNOHANG, nil)
			if errors.Is(err, syscall.EINTR) {
				continue
			}
			if pid <= 0 {
				break
			}
		}
	}
	return nil
}

func loopbackUp() error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	lo, err := unix.NewIfreq("lo")
	if err != nil {
		return err
	}
	lo.SetUint16(unix.IFF_UP | unix.IFF_RUNNING)
	return unix.IoctlIfreq(fd, unix.SIOCSIFFLAGS, lo)
}
