package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"runtime"

	"golang.org/x/sys/unix"
)

// hidden are the machine's directories in which NVIDIA's plugin has places that cannot be chosen.
// What is measured sees empty ones instead.
var hidden = []string{"/var/lib", "/var/run"}

// namespace is a mount namespace to start programs in, held by a thread.
type namespace struct{ do chan func() }

// newNamespace shows files and directories of the machine at other places: from there to here.
func newNamespace(binds map[string]string) (*namespace, error) {
	n := &namespace{do: make(chan func())}
	made := make(chan error)
	go func() { // until close
		runtime.LockOSThread() // for good: the thread ends with the goroutine
		made <- enter(binds)
		for do := range n.do {
			do()
		}
	}()
	if err := <-made; err != nil {
		n.close()
		return nil, fmt.Errorf("making a mount namespace: %w", err)
	}
	return n, nil
}

// enter takes the thread into a namespace of its own.
func enter(binds map[string]string) error {
	if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
		return err
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("cutting its mounts off from the machine's: %w", err)
	}
	for _, dir := range hidden {
		if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "mode=755"); err != nil {
			return fmt.Errorf("hiding %s: %w", dir, err)
		}
	}
	for from, to := range binds {
		if _, err := os.Stat(to); errors.Is(err, fs.ErrNotExist) {
			if err := os.MkdirAll(to, 0o755); err != nil {
				return err
			}
		}
		if err := unix.Mount(from, to, "", unix.MS_BIND|unix.MS_REC, ""); err != nil {
			return fmt.Errorf("showing %s at %s: %w", from, to, err)
		}
	}
	return nil
}

// start starts a command in the namespace, which has to outlive it.
func (n *namespace) start(cmd *exec.Cmd) error {
	started := make(chan error)
	n.do <- func() { started <- cmd.Start() }
	return <-started
}

func (n *namespace) run(cmd *exec.Cmd) error {
	if err := n.start(cmd); err != nil {
		return err
	}
	return cmd.Wait()
}

func (n *namespace) close() { close(n.do) }
