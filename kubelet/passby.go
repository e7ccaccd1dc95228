package kubelet

// PassBy is the way CDI device names reach the container runtime.
type PassBy string

// Values of PassBy.
const (
	ByField      PassBy = "field"      // CDI field of the CRI; requires containerd 1.7.2 or CRI-O 1.28
	ByAnnotation PassBy = "annotation" // cdi.k8s.io/ annotation; requires containerd 1.7.0 or CRI-O 1.24
)
