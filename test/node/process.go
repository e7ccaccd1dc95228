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
	name  string
	cmd   *exec.Cmd
	log   string
	ended chan struct{} // closed when it has ended
}

// start starts a component. It runs until it is stopped, or until the box ends: the
// context only lends its values.
func (n *Node) start(ctx context.Context, name string, args ...string) error {
	log := filepath.Join(n.logs, name+".log")
	out, err := os.OpenFile(log, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return fmt.Errorf("opening the log of %s: %w", name, err)
	}
	defer out.Close()
	p := &process{name: name, log: log, ended: make(chan struct{})}
	p.cmd = n.Box.Command(context.WithoutCancel(ctx), name, args...)
	p.cmd.Stdout, p.cmd.Stderr = out, out
	// An interrupt from the terminal is for the owner of the node to act on.
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := p.cmd.Start(); err != nil {
		return fmt.Errorf("starting %s: %w", name, err)
	}
	go func() { // Close waits for it
		_ = p.cmd.Wait()
		close(p.ended)
	}()
	n.mu.Lock()
	defer n.mu.Unlock()
	n.processes[name] = p
	return nil
}

// stop ends a component and waits until it is gone.
func (n *Node) stop(ctx context.Context, name string) error {
	n.mu.Lock()
	p := n.processes[name]
	n.mu.Unlock()
	if p == nil {
		return fmt.Errorf("stopping %s: it was never started", name)
	}
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("stopping %s: %w", name, err)
	}
	select {
	case <-p.ended:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("waiting for %s to end: %w", name, ctx.Err())
	}
}

// await asks again and again until ready answers without an error. It gives up with the
// context, and when one of the components it depends on has ended.
func (n *Node) await(ctx context.Context, what string, ready func(context.Context) error, on ...string) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Minute)
	defer cancel()
	for {
		err := ready(ctx)
		if err == nil {
			return nil
		}
		for _, name := range on {
			if p := n.process(name); p.over() {
				return fmt.Errorf("waiting for %s: %s ended; its log %s closes with:\n%s", what, name, p.log, tail(p.log))
			}
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("waiting for %s: %w; the last answer: %w (logs are in %s)", what, ctx.Err(), err, n.logs)
		case <-time.After(100 * time.Millisecond):
		}
	}
}

func (n *Node) process(name string) *process {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.processes[name]
}

func (p *process) over() bool {
	if p == nil {
		return false
	}
	select {
	case <-p.ended:
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
