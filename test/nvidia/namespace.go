package nvidia

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"

	"golang.org/x/sys/unix"
)

// hidden are the machine's directories in which NVIDIA's plugin has places that cannot be chosen.
// What runs in a namespace sees empty ones instead.
var hidden = []string{"/var/lib", "/var/run"}

// Namespace is a mount namespace to start programs in, held by a thread.
type Namespace struct{ do chan func() }

// NewNamespace has the kernel of the node whose root is at root, and shows other files and
// directories of the machine at other places: from there to here. NVIDIA's programs know no root
// of a node. They take most of their time for one file of its kernel, mig-minors, which the driver
// fills with 4322 lines whatever GPUs there are.
func NewNamespace(root string, binds map[string]string) (*Namespace, error) {
	all := map[string]string{}
	maps.Copy(all, binds)
	for _, file := range []string{"/proc/devices", "/proc/driver", "/sys/bus/pci/devices"} {
		all[filepath.Join(root, file)] = file
	}
	n := &Namespace{do: make(chan func())}
	made := make(chan error)
	go func() { // until Close
		runtime.LockOSThread() // for good: the thread ends with the goroutine
		made <- enter(all)
		for do := range n.do {
			do()
		}
	}()
	if err := <-made; err != nil {
		n.Close()
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

// Start starts a command in the namespace, which has to outlive it.
func (n *Namespace) Start(cmd *exec.Cmd) error {
	started := make(chan error)
	n.do <- func() { started <- cmd.Start() }
	return <-started
}

// Run starts a command in the namespace and waits for its end.
func (n *Namespace) Run(cmd *exec.Cmd) error {
	if err := n.Start(cmd); err != nil {
		return err
	}
	return cmd.Wait()
}

// Close lets go of the namespace, which ends with the last program in it.
func (n *Namespace) Close() { close(n.do) }
