package driver

import "github.com/gpucdi/gpucdi/gpu"

// Command is one line of JSON from gpucdi to the driver worker: a call that reads or changes a setting of a GPU. Settings
// belong to the driver, so they outlive the worker.
type Command struct {
	ID        uint64    `json:"id"` // of the Reply
	GPU       string    `json:"gpu"`
	Operation Operation `json:"operation"`

	Cgroup string          `json:"cgroup,omitempty"` // absolute path below host.CgroupDir
	Limit  uint64          `json:"limit,omitempty"`  // bytes
	Mode   gpu.ComputeMode `json:"mode,omitempty"`
}

// Operation is the call of a Command.
type Operation string

// The operations.
const (
	GetMemoryLimit Operation = "get memory limit"
	SetMemoryLimit Operation = "set memory limit"
	GetComputeMode Operation = "get compute mode"
	SetComputeMode Operation = "set compute mode"
)

// Reply is the result of a Command. Limit or Mode is the value that the driver reported after the call.
type Reply struct {
	ID    uint64          `json:"id"`
	Limit uint64          `json:"limit,omitempty"` // bytes
	Mode  gpu.ComputeMode `json:"mode,omitempty"`

	// Failed is why the operation failed; empty if it succeeded. Unsupported is set if it can never succeed on this GPU
	// with this driver.
	Failed      string `json:"failed,omitempty"`
	Unsupported bool   `json:"unsupported,omitempty"`
}

const (
	// CommandLimit is the maximum size of a Command in bytes.
	CommandLimit = 4096
	// MaxCommands is the maximum number of commands without a reply. They fit into a pipe of 64 KiB, so writing one
	// never blocks, even if the worker does not read.
	MaxCommands = 16
)
