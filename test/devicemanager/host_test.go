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

// hostFaults are what can go wrong with the files and nodes that a spec needs.
// None of it makes an event.
func hostFaults() []fault {
	libcuda := func(n *node) string {
		return filepath.Join(n.root, simdriver.LibraryDir, "libcuda.so."+n.driver.State().Version)
	}
	nodeOf := func(n *node, gpu string) string {
		state := n.driver.State()
		return filepath.Join(n.root, fmt.Sprintf("dev/nvidia%d", state.GPU(gpu).Minor))
	}
	// instead moves a file away, and lets another take its place.
	instead := func(path string, other func() error) error {
		return errors.Join(os.Rename(path, path+".away"), other())
	}
	back := func(path string) error { return os.Rename(path+".away", path) }
	kernelFile := func(name string, change func([]byte) []byte) (happen, end func(*node, string) error) {
		path := func(n *node) string { return filepath.Join(n.root, "proc", name) }
		happen = func(n *node, _ string) error {
			before, err := os.ReadFile(path(n))
			if err != nil {
				return err
			}
			return instead(path(n), func() error { return os.WriteFile(path(n), change(before), 0o644) })
		}
		return happen, func(n *node, _ string) error { return back(path(n)) }
	}
	unloadUVM, loadUVM := kernelFile("devices", func(text []byte) []byte {
		return bytes.ReplaceAll(text, []byte(" nvidia-uvm\n"), []byte(" other\n"))
	})
	otherModule, sameModule := kernelFile("driver/nvidia/version", func(text []byte) []byte {
		return bytes.ReplaceAll(text, []byte("580.95.05"), []byte("570.86.15"))
	})
	return []fault{
		{
			name:    "libcuda is removed",
			happen:  func(n *node, _ string) error { return instead(libcuda(n), func() error { return nil }) },
			end:     func(n *node, _ string) error { return back(libcuda(n)) },
			healthy: 0, capacity: 8,
		},
		{
			name: "libcuda is damaged",
			happen: func(n *node, _ string) error {
				return instead(libcuda(n), func() error { return os.WriteFile(libcuda(n), []byte("\x7fELF"), 0o755) })
			},
			end:     func(n *node, _ string) error { return back(libcuda(n)) },
			healthy: 0, capacity: 8,
		},
		{
			name: "a GPU's node is another device",
			happen: func(n *node, gpu string) error {
				return instead(nodeOf(n, gpu), func() error {
					return unix.Mknod(nodeOf(n, gpu), unix.S_IFCHR|0o666, int(unix.Mkdev(195, 77)))
				})
			},
			end:     func(n *node, gpu string) error { return back(nodeOf(n, gpu)) },
			healthy: 7, capacity: 8,
		},
		{
			name: "a GPU's node is a file",
			happen: func(n *node, gpu string) error {
				return instead(nodeOf(n, gpu), func() error { return os.WriteFile(nodeOf(n, gpu), nil, 0o666) })
			},
			end:     func(n *node, gpu string) error { return back(nodeOf(n, gpu)) },
			healthy: 7, capacity: 8,
		},
		{name: "nvidia-uvm is unloaded", happen: unloadUVM, end: loadUVM, healthy: 0, capacity: 8},
		{name: "the kernel module is of another version", happen: otherModule, end: sameModule, healthy: 0, capacity: 8},
	}
}

func TestHostFaults(t *testing.T) { letHappen(t, hostFaults()) }
