package allocator

import (
	"cmp"
	"time"

	"github.com/gpucdi/gpucdi/gpu"
)

// Observation is the latest state of each source. The field of a source that has not responded yet is nil. A source
// that stops responding keeps its last response, since loss of evidence must not change the state of an entry.
//
// All times are read in this process, from the same clock as the time passed to Next: Requested before a request is
// sent, Received after its response is complete. They may only be compared with each other. The exception is the time of
// a sandbox, which the runtime reports.
type Observation struct {
	Wanted  []Want    // of the plan, in any order
	Present []Present // GPUs and MIG devices of the inventory, not shares
	Foreign []Foreign // devices that must not be allocated while a container outside Kubernetes uses them

	// Cordoned are the faults of GPUs and MIG devices that an admin has cordoned, by UUID. Their holders keep them.
	Cordoned map[string]gpu.Fault

	Grants      map[Key]Grant   // by the Gate
	Lists       map[string]List // by outlet, those that have a ListAndWatch stream
	Allocatable *Allocatable
	Pods        *PodResources
	Checkpoint  *Checkpoint
	Runtime     *Runtime

	// Claims are the prepared claims. They must be read after Grants, so that the claim of each observed grant is observed
	// too or has been unprepared.
	Claims      []Claim
	Pool        Pool
	Allocations *Allocations
}

// Want is an ID that an outlet should advertise.
type Want struct {
	Key
	Part     Part
	Features Features // see Entry.Features
	Capacity Amount   // see Entry.Capacity
	Fault    gpu.Fault

	// Ready is set if the entry may become available. For example, its CDI devices must be on disk and verified, and the
	// agent must be able to track its holders.
	Ready bool
}

// Present is a device of the inventory.
type Present struct {
	Device Part
	Fault  gpu.Fault
}

// Foreign is a device that a container outside Kubernetes uses.
type Foreign struct {
	Device    Part
	Container string // for messages
}

// foreignFault returns the fault of a part that a container outside Kubernetes uses.
func (o *Observation) foreignFault(part Part) gpu.Fault {
	for _, f := range o.Foreign {
		if f.Device.touches(part) {
			return gpu.Fault{
				Code:    gpu.FaultForeignHolder,
				Message: "used outside Kubernetes by " + f.Container,
				Remedy:  "stop it, or set allocation.respectForeignContainers to false",
			}
		}
	}
	return gpu.Fault{}
}

// cordon returns the fault of an entry whose device or GPU is cordoned.
func (o *Observation) cordon(k Key, part Part) gpu.Fault {
	return cmp.Or(o.Cordoned[part.GPU], o.Cordoned[DeviceOf(k.ID)])
}

// List is the state of the ListAndWatch stream of an outlet.
type List struct {
	Stream time.Time // when the stream began
	Sent   time.Time // after the last message was sent; zero if none was
}

// Allocatable is a response to GetAllocatableResources: the IDs that are healthy in the kubelet's records.
type Allocatable struct {
	Requested, Received time.Time
	IDs                 map[Key]bool
}

// PodResources is a response to List of the PodResources API. It never proves that a device is free: it omits init
// containers except sidecars, pods in admission, pods that the kubelet has not added again after a restart, and
// force-deleted pods. The request makes the kubelet remove terminated pods from its records.
type PodResources struct {
	Requested, Received time.Time
	Held                map[Key]bool
}

// Checkpoint is one reading of kubelet_internal_checkpoint. Version is empty if the file does not exist.
type Checkpoint struct {
	Requested, Received time.Time

	// Version identifies the file that was renamed into place: device, inode, mtime and size. It is only compared for
	// equality.
	Version string

	Held       []Holding
	Registered map[Key]bool // RegisteredDevices of our outlets
}

// Holding is an ID of our outlets that the checkpoint assigns to a pod. Part is used only if the ledger lacks the
// entry; it is the zero Part if unknown.
type Holding struct {
	Key
	Part Part
	Pod  string // UID
}

// Pool is the last version of the node's ResourceSlices that the API server has acknowledged.
type Pool struct {
	Acknowledged time.Time // zero if none was
	IDs          map[string]bool
}

// Allocations are the devices of the slices that are allocated to claims, prepared or not, except those that claims
// only monitor.
type Allocations struct {
	Requested, Received time.Time
	Claims              map[string]string // names of the claims for messages, by ID of the device

	// Absent is set if the API server does not respond. Entries of the slice that the config withdraws are then not
	// released.
	Absent bool
}

// Runtime is the container runtime's list of the created and running containers of pods.
type Runtime struct {
	Requested, Received time.Time
	Containers          []Container
	Sandboxes           map[string]time.Time // when the first ready sandbox of a pod was created, by UID

	// Absent is set if no runtime responds. Draining entries are then released without this evidence. Advertised entries
	// are not proved free, since the runtime may return with its containers.
	Absent bool
}

// ready reports whether a pod has a ready sandbox.
func (r *Runtime) ready(pod string) bool {
	_, ready := r.Sandboxes[pod]
	return ready
}

// Container is one CDI device of a container. Part is never a share, because all shares of a device have the same
// device nodes.
type Container struct {
	Pod  string // UID
	Part Part
}
