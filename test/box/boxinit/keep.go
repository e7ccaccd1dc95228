package main

import (
	"context"
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
// the box is up. The box ends, even before it is up, on EOF of standard input (unless it is
// kept), on SIGTERM, and when its PID 1 dies.
func keep(dir string) (err error) {
	s, err := spec.Read(dir)
	if err != nil {
		return err
	}
	ctx := untilStopped(s.Keep)

	defer func() { err = errors.Join(err, removeCgroups(s.Cgroups), os.RemoveAll(dir)) }()
	if s.Cgroups, err = makeCgroups(s.ID); err != nil {
		return err
	}
	s.Keeper = os.Getpid()
	if err := s.Write(); err != nil {
		return err
	}
	init, err := startInit(ctx, s)
	if err != nil {
		return err
	}
	s.Init = init.Process.Pid
	if err := s.Write(); err != nil {
		return errors.Join(err, kill(init))
	}
	fmt.Println("ready")
	if err := init.Wait(); ctx.Err() == nil {
		return fmt.Errorf("the box's PID 1 ended: %w", err)
	}
	return nil
}

// untilStopped returns a context that ends on SIGTERM and, unless the box is kept, on EOF of standard input. Its
// goroutines end with the process.
func untilStopped(kept bool) context.Context {
	signal.Ignore(syscall.SIGINT, syscall.SIGHUP, syscall.SIGPIPE)
	terminated := make(chan os.Signal, 1)
	signal.Notify(terminated, syscall.SIGTERM)
	ctx, stop := context.WithCancel(context.Background())
	go func() {
		<-terminated
		stop()
	}()
	go func() {
		if _, err := io.Copy(io.Discard, os.Stdin); err == nil && !kept {
			stop()
		}
	}()
	return ctx
}

// startInit starts PID 1, which is killed when ctx ends, and waits until it has built the box.
func startInit(ctx context.Context, s *spec.Spec) (*exec.Cmd, error) {
	ready, readyW, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("creating a pipe for the box's PID 1: %w", err)
	}
	defer ready.Close()
	cmd := exec.CommandContext(ctx, "/proc/self/exe", "init", s.Dir)
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
		if err = ctx.Err(); err == nil {
			err = errors.New("its PID 1 failed; see the lines above")
		}
		return nil, errors.Join(fmt.Errorf("building the box: %w", err), kill(cmd))
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
