package gpu

// Architecture is NVIDIA's name of a GPU generation, such as "Hopper".
type Architecture string

// ArchitectureUnknown stands for an architecture that the driver does not report or that gpucdi has no name for.
const ArchitectureUnknown Architecture = "unknown"
