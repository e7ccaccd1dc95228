package gpu

// Architecture is NVIDIA's name of a GPU generation, such as "Hopper".
type Architecture string

// ArchitectureUnknown is an architecture that the driver does not report or that this version does not support.
const ArchitectureUnknown Architecture = "unknown"
