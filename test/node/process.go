package node

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// A process is a component that runs in the box.
type process struct {
	name   string
	cmd    *exec.Cmd
	log    string
	exited chan struct{} // closed when it has exited
}

// collectGarbageRarely trades the memory of a component, whose heap is small, for a part of its CPU time.
const collectGarbageRarely = "GOGC=400"

// start starts a component, which runs until stop is called or the box is closed, even if ctx is canceled earlier.
func (n *Node) start(ctx context.Context, name string, args ...string) error {
	cmd := n.Box.Command(context.WithoutCancel(ctx), name, args...)
	cmd.Env = append(cmd.Env, collectGarbageRarely)
	return n.startCommand(name, cmd)
}

// startCommand starts a component, given its command.
func (n *Node) startCommand(name string, cmd *exec.Cmd) error {
	log := filepath.Join(n.logs, name+".log")
	out, err := os.OpenFile(log, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return fmt.Errorf("opening the log of %s: %w", name, err)
	}
	defer out.Close()
	p := &process{name: name, cmd: cmd, log: log, exited: make(chan struct{})}
	p.cmd.Stdout, p.cmd.Stderr = out, out
	// In a separate session it receives no SIGINT from the terminal: the caller decides when to close the node.
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := p.cmd.Start(); err != nil {
		return fmt.Errorf("starting %s: %w", name, err)
	}
	go func() { // Close waits for it
		_ = p.cmd.Wait()
		close(p.exited)
	}()
	n.mu.Lock()
	defer n.mu.Unlock()
	n.processes[name] = p
	return nil
}

// stop sends SIGTERM to a component and waits until it has exited.
func (n *Node) stop(ctx context.Context, name string) error {
	p := n.process(name)
	if p == nil {
		return fmt.Errorf("stopping %s: not started", name)
	}
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("stopping %s: %w", name, err)
	}
	select {
	case <-p.exited:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("waiting for %s to exit: %w", name, ctx.Err())
	}
}

// await calls ready until it returns no error. It fails after five minutes, when ctx is done, or when one of the given
// components has exited.
func (n *Node) await(ctx context.Context, what string, ready func(context.Context) error, components ...string) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Minute)
	defer cancel()
	for {
		err := ready(ctx)
		if err == nil {
			return nil
		}
		for _, name := range components {
			if p := n.process(name); p.hasExited() {
				return fmt.Errorf("waiting for %s: %s exited; end of its log %s:\n%s", what, name, p.log, tail(p.log))
			}
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("waiting for %s: %w; last error: %w (logs are in %s)", what, ctx.Err(), err, n.logs)
		case <-time.After(100 * time.Millisecond):
		}
	}
}

func (n *Node) process(name string) *process {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.processes[name]
}

func (p *process) hasExited() bool {
	if p == nil {
		return false
	}
	select {
	case <-p.exited:
		return true
	default:
		return false
	}
}

// tail returns the last lines of a file.
func tail(name string) string {
	data, err := os.ReadFile(name)
	if err != nil {
		return err.Error()
	}
	lines := strings.Split(strings.TrimSpace(string(data)), "\n")
	return strings.Join(lines[max(0, len(lines)-15):], "\n")
}
