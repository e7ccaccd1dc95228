package allocator

// MIGStrategy is under which resources MIG devices are advertised.
type MIGStrategy string

// The strategies.
const (
	MIGNone   MIGStrategy = "none"   // not at all
	MIGSingle MIGStrategy = "single" // as GPUs, on a node that is cut alike throughout
	MIGMixed  MIGStrategy = "mixed"  // each profile as a resource of its own
)
