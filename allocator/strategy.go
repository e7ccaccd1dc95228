package allocator

// MIGStrategy selects the resources under which MIG devices are advertised.
type MIGStrategy string

// The MIG strategies.
const (
	MIGNone   MIGStrategy = "none"   // MIG devices are not advertised
	MIGSingle MIGStrategy = "single" // as nvidia.com/gpu; requires all GPUs in MIG mode, and one profile for all
	MIGMixed  MIGStrategy = "mixed"  // as one resource for each profile
)
