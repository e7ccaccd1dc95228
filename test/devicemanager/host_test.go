package devicemanager

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/gpucdi/gpucdi/test/simdriver"
)

// hostFaults are faults of driver files, device nodes and kernel modules. They cause no event; only a probe detects
// them.
func hostFaults() []fault {
	libcuda := func(n *node) string {
		return filepath.Join(n.root, simdriver.LibraryDir, "libcuda.so."+n.driver.State().Version)
	}
	nodeOf := func(n *node, gpu string) string {
		state := n.driver.State()
		return filepath.Join(n.root, fmt.Sprintf("dev/nvidia%d", state.GPU(gpu).Minor))
	}
	// replace renames a file and calls create to create a replacement; restoreFile renames it back.
	replace := func(path string, create func() error) error {
		return errors.Join(os.Rename(path, path+".away"), create())
	}
	restoreFile := func(path string) error { return os.Rename(path+".away", path) }
	kernelFile := func(name string, change func([]byte) []byte) (inject, restore func(*node, string) error) {
		path := func(n *node) string { return filepath.Join(n.root, "proc", name) }
		inject = func(n *node, _ string) error {
			before, err := os.ReadFile(path(n))
			if err != nil {
				return err
			}
			return replace(path(n), func() error { return os.WriteFile(path(n), change(before), 0o644) })
		}
		return inject, func(n *node, _ string) error { return restoreFile(path(n)) }
	}
	unloadUVM, loadUVM := kernelFile("devices", func(text []byte) []byte {
		return bytes.ReplaceAll(text, []byte(" nvidia-uvm\n"), []byte(" other\n"))
	})
	changeVersion, restoreVersion := kernelFile("driver/nvidia/version", func(text []byte) []byte {
		return bytes.ReplaceAll(text, []byte("580.95.05"), []byte("570.86.15"))
	})
	return []fault{
		{
			name:    "libcuda is removed",
			inject:  func(n *node, _ string) error { return replace(libcuda(n), func() error { return nil }) },
			restore: func(n *node, _ string) error { return restoreFile(libcuda(n)) },
			healthy: 0, capacity: 8,
		},
		{
			name: "libcuda is damaged",
			inject: func(n *node, _ string) error {
				return replace(libcuda(n), func() error { return os.WriteFile(libcuda(n), []byte("\x7fELF"), 0o755) })
			},
			restore: func(n *node, _ string) error { return restoreFile(libcuda(n)) },
			healthy: 0, capacity: 8,
		},
		{
			name: "a GPU's device node is another device",
			inject: func(n *node, gpu string) error {
				return replace(nodeOf(n, gpu), func() error {
					return unix.Mknod(nodeOf(n, gpu), unix.S_IFCHR|0o666, int(unix.Mkdev(195, 77)))
				})
			},
			restore: func(n *node, gpu string) error { return restoreFile(nodeOf(n, gpu)) },
			healthy: 7, capacity: 8,
		},
		{
			name: "a GPU's device node is a regular file",
			inject: func(n *node, gpu string) error {
				return replace(nodeOf(n, gpu), func() error { return os.WriteFile(nodeOf(n, gpu), nil, 0o666) })
			},
			restore: func(n *node, gpu string) error { return restoreFile(nodeOf(n, gpu)) },
			healthy: 7, capacity: 8,
		},
		{name: "nvidia-uvm is unloaded", inject: unloadUVM, restore: loadUVM, healthy: 0, capacity: 8},
		{name: "the kernel module is of another version", inject: changeVersion, restore: restoreVersion, healthy: 0, capacity: 8},
	}
}

func TestHostFaults(t *testing.T) {
	t.Parallel()
	testFaults(t, hostFaults())
}
