package kubelet

// PassBy is a way for CDI device names to reach the container runtime.
type PassBy string

// The ways.
const (
	ByField      PassBy = "field"      // the CRI's own field, which containerd knows from 1.7.2 and CRI-O from 1.28 on
	ByAnnotation PassBy = "annotation" // what came before it: containerd 1.7.0, CRI-O 1.24
)
