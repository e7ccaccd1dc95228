package gpu

// MIGMode is whether a GPU is cut into MIG devices.
type MIGMode string

// The MIG modes.
const (
	MIGUnsupported MIGMode = "unsupported"
	MIGDisabled    MIGMode = "disabled"
	MIGEnabled     MIGMode = "enabled"
)

// Architecture is a GPU generation, by NVIDIA's name for it.
type Architecture string

// ArchitectureUnknown is a generation newer than this program, or one that
// the driver does not tell.
const ArchitectureUnknown Architecture = "unknown"
