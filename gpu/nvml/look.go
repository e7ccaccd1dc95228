package nvml

import (
	"encoding/json"
	"errors"
	"io"
	"os"
	"strings"
	"syscall"

	"github.com/NVIDIA/go-nvml/pkg/dl"
	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/gpucdi/gpucdi/gpu"
	"github.com/gpucdi/gpucdi/gpu/driver"
	"github.com/gpucdi/gpucdi/internal/host"
)

// Look writes to out, as a driver.Sight, what this process's container has of
// what is named: device nodes by their paths, and libraries as the loader finds them.
func Look(names []string, out io.Writer) error {
	seen := driver.Sight{Nodes: map[string]syscall.Errno{}, Libraries: map[string]string{}}
	for _, name := range names {
		if strings.HasPrefix(name, "/") {
			seen.Nodes[name] = open(name)
			continue
		}
		seen.Libraries[name] = ""
		if err := load(name); err != nil {
			seen.Libraries[name] = err.Error()
		}
	}
	if failed, asked := seen.Libraries[host.NVMLName]; asked && failed == "" {
		var err error
		if seen.GPUs, err = list(); err != nil {
			seen.Trouble = err.Error()
		}
	}
	return json.NewEncoder(out).Encode(seen)
}

// open opens a node as programs do: those of MIG's capabilities can only be read.
func open(node string) syscall.Errno {
	access := os.O_RDWR
	if strings.HasPrefix(node, "/dev/nvidia-caps/") {
		access = os.O_RDONLY
	}
	file, err := os.OpenFile(node, access, 0)
	if err == nil {
		_ = file.Close()
		return 0
	}
	errno := syscall.EIO
	_ = errors.As(err, &errno)
	return errno
}

func load(library string) error {
	loaded := dl.New(library, dl.RTLD_LAZY)
	if err := loaded.Open(); err != nil {
		return err
	}
	return loaded.Close()
}

// list are the GPUs that NVML reports here.
func list() ([]gpu.GPU, error) {
	s := session{lib: nvml.New(nvml.WithLibraryPath(host.NVMLName)), node: host.NewRoot("/")}
	if ret := s.lib.Init(); ret != nvml.SUCCESS {
		return nil, initError(host.NVMLName, ret)
	}
	_, count, err := s.driver()
	if err != nil {
		return nil, err
	}
	var inv gpu.Inventory
	for index := range count {
		g, _, err := s.read(index)
		if err != nil {
			return nil, err
		}
		inv.GPUs = append(inv.GPUs, g)
	}
	isolate(&inv)
	return inv.GPUs, nil
}
