package driver

import (
	"syscall"

	"github.com/gpucdi/gpucdi/gpu"
)

// CUDA is the SONAME of what programs load beside NVML.
const CUDA = "libcuda.so.1"

// Sight is what a process sees of the driver from inside a container.
type Sight struct {
	Nodes     map[string]syscall.Errno `json:"nodes"`     // what opening each led to; 0: it opens
	Libraries map[string]string        `json:"libraries"` // why each cannot be loaded; empty: it can
	GPUs      []gpu.GPU                `json:"gpus"`      // by NVML, if that is one of Libraries
	Trouble   string                   `json:"trouble,omitempty"`
}
