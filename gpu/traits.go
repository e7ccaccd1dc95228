package gpu

// Architecture is a GPU generation, by NVIDIA's name for it.
type Architecture string

// ArchitectureUnknown is a generation newer than this program, or one that
// the driver does not tell.
const ArchitectureUnknown Architecture = "unknown"
