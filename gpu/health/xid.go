package health

import "slices"

// Class is what an XID means for the GPU that reports it.
type Class string

// The classes, mildest first.
const (
	// Ignore: for the record only.
	Ignore Class = "ignore"
	// Application: a program did wrong; the GPU is fine.
	Application Class = "application"
	// Transient: the GPU may be unwell for a while. It heals after a quiet
	// period with probes that pass.
	Transient Class = "transient"
	// Reset: the GPU does not work right until it is reset.
	Reset Class = "reset"
	// Fatal: the GPU does not work until it has left and come back, as by a
	// reboot or a repair.
	Fatal Class = "fatal"
)

// XID is one kind of error in NVIDIA's catalogue.
type XID struct {
	Code  int
	Class Class
	Text  string
}

// fellOffTheBus is the one fatal XID that says itself that the GPU is away.
const fellOffTheBus = 79

// xids are those whose meaning is known, by ascending code. Any other is
// Transient: a new kind of error is no reason to take a GPU away for ever,
// and none to go on as if nothing had happened.
//
// The meanings are those of NVIDIA's XID catalogue for data-centre GPUs.
var xids = []XID{
	{8, Application, "a kernel of a program stalled"},
	{13, Application, "a program caused an engine exception"},
	{31, Application, "a program accessed memory that it does not have"},
	{32, Application, "a program's command stream was corrupted"},
	{37, Application, "a program's driver calls failed"},
	{38, Reset, "the firmware failed"},
	{43, Application, "a program's channel was stopped"},
	{44, Reset, "the graphics engine failed"},
	{45, Application, "a program's channels were cleaned up"},
	{46, Reset, "the GPU stopped processing"},
	{48, Reset, "memory had an error that cannot be corrected"},
	{54, Fatal, "auxiliary power is not connected"},
	{61, Reset, "the micro-controller hit a breakpoint"},
	{62, Reset, "the micro-controller halted"},
	{63, Ignore, "a memory page or row was recorded for replacement"},
	{64, Reset, "a memory page or row could not be recorded for replacement"},
	{66, Application, "a program made an illegal access"},
	{67, Application, "a program made an illegal access"},
	{68, Application, "a program caused a video engine exception"},
	{69, Application, "a program caused a graphics engine class error"},
	{74, Reset, "an NVLink failed"},
	{78, Fatal, "the GPU could not be started as a virtual one"},
	{fellOffTheBus, Fatal, "the GPU has fallen off the bus"},
	{81, Ignore, "the display subsystem failed"},
	{92, Ignore, "many memory errors were corrected"},
	{94, Application, "a memory error was contained: only the program that read it ends"},
	{95, Reset, "a memory error was not contained"},
	{109, Application, "a program's context did not switch in time"},
	{110, Fatal, "a security fault"},
	{119, Reset, "the GPU system processor did not answer"},
	{120, Reset, "the GPU system processor failed"},
	{121, Ignore, "a chip-to-chip link corrected errors"},
	{136, Reset, "a link could not be trained"},
	{137, Application, "a program made an illegal access over NVLink"},
	{140, Reset, "memory had an error that was not recovered"},
	{143, Reset, "the GPU could not be started"},
	{154, Ignore, "the action that recovers the GPU has changed"},
}

// Policy is how the health of a node's GPUs is judged.
type Policy struct {
	Ignore, Fatal []int // XIDs that are to have these classes
}

// Class returns what an XID means under the policy.
func (p Policy) Class(code int) Class {
	switch {
	case slices.Contains(p.Ignore, code):
		return Ignore
	case slices.Contains(p.Fatal, code):
		return Fatal
	}
	if x, known := find(code); known {
		return x.Class
	}
	return Transient
}

func find(code int) (XID, bool) {
	i, known := slices.BinarySearchFunc(xids, code, func(x XID, code int) int { return x.Code - code })
	if !known {
		return XID{}, false
	}
	return xids[i], true
}

// Known returns the XIDs whose meaning is known, by ascending code.
func Known() []XID { return slices.Clone(xids) }
