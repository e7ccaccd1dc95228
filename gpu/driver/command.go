package driver

import "github.com/gpucdi/gpucdi/gpu"

// Command is one line of JSON from gpucdi to the driver worker: a call that reads or changes a setting of a GPU.
type Command struct {
	ID        uint64    `json:"id"`  // of the Reply
	GPU       string    `json:"gpu"` // UUID
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
	Used  uint64          `json:"used,omitempty"`  // bytes that the cgroup and its descendants have allocated
	Mode  gpu.ComputeMode `json:"mode,omitempty"`

	// Failed is why the operation failed; empty if it succeeded. Unsupported is set if the driver, or the GPU in its MIG
	// mode, does not support it.
	Failed      string `json:"failed,omitempty"`
	Unsupported bool   `json:"unsupported,omitempty"`
}

const (
	// CommandLimit is the maximum size of a Command in bytes, with the newline. It is PIPE_BUF, so that a line is
	// written whole or not at all.
	CommandLimit = 4096
	// MaxCommands is the maximum number of commands without a reply.
	MaxCommands = 16
)
