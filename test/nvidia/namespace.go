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

// hidden are host directories in which NVIDIA's plugin uses fixed paths. A Namespace has only its bind mounts there.
var hidden = []string{"/var/lib", "/var/run"}

// Namespace is a mount namespace in which programs can be started. A thread keeps it alive until Close.
type Namespace struct{ do chan func() }

// NewNamespace creates a mount namespace in which /proc/devices, /proc/driver and /sys/bus/pci/devices are those of the
// node at root, since NVIDIA's programs have no flag for a host root. binds are additional bind mounts, from host path
// to path in the namespace.
//
// In benchmarks, NVIDIA's programs spend most of their time on /proc/driver/nvidia-caps/mig-minors, which has 4322
// lines on every node.
func NewNamespace(root string, binds map[string]string) (*Namespace, error) {
	all := map[string]string{}
	maps.Copy(all, binds)
	for _, file := range []string{"/proc/devices", "/proc/driver"} {
		all[filepath.Join(root, file)] = file
	}
	n := &Namespace{do: make(chan func())}
	entered := make(chan error)
	go func() { // until Close
		runtime.LockOSThread() // never unlocked, so the thread ends with the goroutine
		err := enter(all)
		if err == nil {
			err = showPCIDevices(root)
		}
		entered <- err
		for do := range n.do {
			do()
		}
	}()
	if err := <-entered; err != nil {
		n.Close()
		return nil, fmt.Errorf("creating a mount namespace: %w", err)
	}
	return n, nil
}

// enter moves the thread to a new mount namespace.
func enter(binds map[string]string) error {
	if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
		return err
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("making mounts private: %w", err)
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
			return fmt.Errorf("mounting %s at %s: %w", from, to, err)
		}
	}
	return nil
}

const pciDevices = "/sys/bus/pci/devices"

// showPCIDevices mounts the PCI devices of the node at root. In sysfs they are links to directories that the namespace
// does not have.
func showPCIDevices(root string) error {
	devices, err := os.ReadDir(filepath.Join(root, pciDevices))
	if err != nil {
		return err
	}
	if err := unix.Mount("tmpfs", pciDevices, "tmpfs", 0, "mode=755"); err != nil {
		return fmt.Errorf("hiding %s: %w", pciDevices, err)
	}
	for _, d := range devices {
		from, err := filepath.EvalSymlinks(filepath.Join(root, pciDevices, d.Name()))
		if err != nil {
			return err
		}
		to := filepath.Join(pciDevices, d.Name())
		if err := os.Mkdir(to, 0o755); err != nil {
			return err
		}
		if err := unix.Mount(from, to, "", unix.MS_BIND, ""); err != nil {
			return fmt.Errorf("mounting %s at %s: %w", from, to, err)
		}
	}
	return nil
}

// Start starts a command in the namespace. Close must not be called before the command has exited: when the thread that
// started the command ends, the kernel sends the command its Pdeathsig.
func (n *Namespace) Start(cmd *exec.Cmd) error {
	started := make(chan error)
	n.do <- func() { started <- cmd.Start() }
	return <-started
}

// Run runs a command in the namespace and waits until it exits.
func (n *Namespace) Run(cmd *exec.Cmd) error {
	if err := n.Start(cmd); err != nil {
		return err
	}
	return cmd.Wait()
}

// Close ends the thread that keeps the namespace alive.
func (n *Namespace) Close() { close(n.do) }
