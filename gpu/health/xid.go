package health

import "slices"

// Class is the effect of an XID on the health of the GPU.
type Class string

// The classes, by ascending severity.
const (
	// Ignore does not affect the health.
	Ignore Class = "ignore"
	// Application affects only programs, not the health.
	Application Class = "application"
	// Transient recovers after a quiet period with successful probes.
	Transient Class = "transient"
	// Reset requires a GPU reset.
	Reset Class = "reset"
	// Fatal requires that the GPU disappears and returns, for example by a reboot or repair.
	Fatal Class = "fatal"
)

// XID is an XID error with its class and description.
type XID struct {
	Code  int
	Class Class
	Text  string
}

// fellOffTheBus is the only fatal XID that implies that the GPU is unreachable.
const fellOffTheBus = 79

// xids is the catalog, by ascending code. The texts follow NVIDIA's XID catalog for data center GPUs. Unlisted XIDs are
// Transient: an unknown error must neither disable a GPU permanently nor be ignored.
var xids = []XID{
	{8, Application, "GPU stopped processing a kernel"},
	{13, Application, "graphics engine exception"},
	{31, Application, "GPU memory page fault"},
	{32, Application, "invalid or corrupted push buffer stream"},
	{37, Application, "driver error caused by a program"},
	{38, Reset, "driver firmware error"},
	{43, Application, "GPU stopped processing a channel"},
	{44, Reset, "graphics engine fault during context switch"},
	{45, Application, "preemptive cleanup of channels after an error"},
	{46, Reset, "GPU stopped processing"},
	{48, Reset, "double-bit ECC error"},
	{54, Fatal, "auxiliary power is not connected"},
	{61, Reset, "internal micro-controller breakpoint"},
	{62, Reset, "internal micro-controller halt"},
	{63, Ignore, "page retirement or row remapping recorded"},
	{64, Reset, "page retirement or row remapping could not be recorded"},
	{66, Application, "illegal access"},
	{67, Application, "illegal access"},
	{68, Application, "video engine exception"},
	{69, Application, "graphics engine class error"},
	{74, Reset, "NVLink error"},
	{78, Fatal, "vGPU start error"},
	{fellOffTheBus, Fatal, "GPU has fallen off the bus"},
	{81, Ignore, "VGA subsystem error"},
	{92, Ignore, "high single-bit ECC error rate"},
	{94, Application, "contained memory error: only the affected program is terminated"},
	{95, Reset, "uncontained memory error"},
	{109, Application, "context switch timeout"},
	{110, Fatal, "security fault"},
	{119, Reset, "GSP RPC timeout"},
	{120, Reset, "GSP error"},
	{121, Ignore, "corrected C2C link error"},
	{136, Reset, "link training failed"},
	{137, Application, "NVLink privilege error"},
	{140, Reset, "unrecovered ECC error"},
	{143, Reset, "GPU initialization failure"},
	{154, Ignore, "GPU recovery action changed"},
}

// Policy overrides the classes of XIDs. Ignore takes precedence.
type Policy struct {
	Ignore, Fatal []int // XID codes
}

// Class returns the class of an XID under the policy.
func (p Policy) Class(code int) Class {
	switch {
	case slices.Contains(p.Ignore, code):
		return Ignore
	case slices.Contains(p.Fatal, code):
		return Fatal
	}
	if x, found := find(code); found {
		return x.Class
	}
	return Transient
}

func find(code int) (XID, bool) {
	i, found := slices.BinarySearchFunc(xids, code, func(x XID, code int) int { return x.Code - code })
	if !found {
		return XID{}, false
	}
	return xids[i], true
}

// Catalog returns all XIDs of the catalog, by ascending code.
func Catalog() []XID { return slices.Clone(xids) }
