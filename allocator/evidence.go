package allocator

import (
	"time"

	"github.com/gpucdi/gpucdi/gpu"
)

// Observation is what the agent has observed, the latest of each source. A source
// that never answered is nil; one that stops answering keeps its last answer,
// since loss of evidence must not change a state.
//
// All stamps are of the clock that Next is given, taken in this process: Asked
// before a request is sent, Answered after its answer is complete. They may only
// be compared with each other.
type Observation struct {
	Wanted  []Want    // what the plan offers, in any order
	Present []Present // GPUs and MIG devices of the inventory, shares aside

	Grants      map[Key]Grant   // of the Gate
	Lists       map[string]List // by outlet, those that have a ListAndWatch stream
	Allocatable *Allocatable
	Pods        *PodResources
	Checkpoint  *Checkpoint
	Runtime     *Runtime
}

// Want is an ID that an outlet is to offer.
type Want struct {
	Key
	Part    Part
	Fault   gpu.Fault
	Durable bool // its CDI device is on disk and proved
}

// Present is a device of the inventory.
type Present struct {
	Device Part
	Fault  gpu.Fault
}

// List is what was sent on the ListAndWatch stream of an outlet.
type List struct {
	Stream time.Time // when the stream began
	Sent   time.Time // after the last message was sent; zero if none was
}

// Allocatable is an answer to GetAllocatableResources: the IDs that the kubelet
// considers healthy.
type Allocatable struct {
	Asked, Answered time.Time
	IDs             map[Key]bool
}

// PodResources is an answer to List. It never proves that something is free: it
// omits init containers, pods in admission, pods that the kubelet has not added
// again after a restart, and force-deleted pods. Asking removes the pods that
// have ended from the kubelet's books.
type PodResources struct {
	Asked, Answered time.Time
	Held            map[Key]bool
}

// Checkpoint is one reading of kubelet_internal_checkpoint. A file that does not
// exist is a reading with no Version.
type Checkpoint struct {
	Asked, Answered time.Time

	// Version is different for each file that was renamed into place: device,
	// inode, mtime and size. Only equality counts.
	Version string

	Held       []Holding
	Registered map[Key]bool // RegisteredDevices, as far as an agent of ours offered them
}

// Holding is an ID of an agent of ours that the checkpoint names for a pod. Part is
// used only if the ledger does not have the entry; the zero Part if it cannot be told.
type Holding struct {
	Key
	Part Part
	Pod  string // UID
}

// Runtime is what the container runtime reported about all containers that are
// created or running, in all its namespaces.
type Runtime struct {
	Asked, Answered time.Time
	Containers      []Container
	Sandboxes       map[string]bool // UIDs of pods with a ready sandbox

	// Absent is set if no runtime answers. An entry that drains has to do without then; for one that is
	// offered nothing is proved, since the runtime may come back with its containers.
	Absent bool
}

// Container is a device that a container has, by CDI name or device number. One
// with several devices is several values. Part is not a share: the device nodes
// of all shares are the same.
type Container struct {
	Pod  string // UID; empty if it is no container of a pod
	Part Part
}
