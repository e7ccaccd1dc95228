package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"syscall"

	"github.com/gpucdi/gpucdi/test/box/internal/spec"
)

// keep runs the keeper, which removes the box even if its owner crashes. It prints "ready" when
// the box is up. The box ends on EOF of standard input (unless it is kept), on SIGTERM, and
// when its PID 1 dies.
func keep(dir string) (err error) {
	s, err := spec.Read(dir)
	if err != nil {
		return err
	}
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, syscall.SIGTERM)
	signal.Ignore(syscall.SIGINT, syscall.SIGHUP, syscall.SIGPIPE)

	defer func() { err = errors.Join(err, removeCgroups(s.Cgroups), os.RemoveAll(dir)) }()
	if s.Cgroups, err = makeCgroups(s.ID); err != nil {
		return err
	}
	s.Keeper = os.Getpid()
	if err := s.Write(); err != nil {
		return err
	}
	init, err := startInit(s)
	if err != nil {
		return err
	}
	s.Init = init.Process.Pid
	if err := s.Write(); err != nil {
		return errors.Join(err, kill(init))
	}
	fmt.Println("ready")

	ended := make(chan struct{}, 1)
	go func() { // may outlive keep; the process exits then
		if _, err := io.Copy(io.Discard, os.Stdin); err == nil && !s.Keep {
			ended <- struct{}{}
		}
	}()
	died := make(chan error, 1)
	go func() { died <- init.Wait() }()
	select {
	case <-stop:
	case <-ended:
	case err := <-died:
		return fmt.Errorf("the box's PID 1 ended: %w", err)
	}
	_ = init.Process.Kill()
	<-died
	return nil
}

// startInit starts PID 1 and waits until it has built the box.
func startInit(s *spec.Spec) (*exec.Cmd, error) {
	ready, readyW, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("creating a pipe for the box's PID 1: %w", err)
	}
	defer ready.Close()
	cmd := exec.Command("/proc/self/exe", "init", s.Dir)
	cmd.Stderr = os.Stderr
	cmd.ExtraFiles = []*os.File{readyW}
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Setsid:    true,
		Pdeathsig: syscall.SIGKILL,
		// PID 1 creates the cgroup namespace itself, after it has joined the cgroup that becomes its root.
		Cloneflags: syscall.CLONE_NEWNS | syscall.CLONE_NEWPID | syscall.CLONE_NEWNET |
			syscall.CLONE_NEWUTS | syscall.CLONE_NEWIPC,
	}
	err = cmd.Start()
	readyW.Close()
	if err != nil {
		return nil, fmt.Errorf("starting the box's PID 1: %w", err)
	}
	if _, err := io.ReadFull(ready, make([]byte, 1)); err != nil {
		return nil, errors.Join(errors.New("building the box: its PID 1 failed; see the lines above"), kill(cmd))
	}
	return cmd, nil
}

func kill(cmd *exec.Cmd) error {
	err := cmd.Process.Kill()
	_ = cmd.Wait()
	if errors.Is(err, os.ErrProcessDone) {
		return nil
	}
	return err
}
