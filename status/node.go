package status

import (
	"encoding/json"
	"time"

	"github.com/gpucdi/gpucdi/gpu"
)

// Node is the status of a node at one moment.
type Node struct {
	Name    string `json:"name,omitempty"` // in Kubernetes; empty if the agent has no --node-name
	Version string `json:"version"`        // of gpucdi

	Config  Config  `json:"config"`
	Driver  Driver  `json:"driver"`
	Spec    Spec    `json:"spec"`
	Runtime Runtime `json:"runtime"`
	Kubelet Kubelet `json:"kubelet"`
	DRA     *DRA    `json:"dra,omitempty"` // nil if DRA is disabled
	NRI     *NRI    `json:"nri,omitempty"` // nil unless the config enables it

	Containers Containers `json:"containers"`

	// CordonsError is why cordons may be missing, stale or without their reason.
	CordonsError string `json:"cordonsError,omitempty"`

	Devices    []Device         `json:"devices"`
	Excluded   []Excluded       `json:"excluded,omitempty"`
	GPUs       []GPU            `json:"gpus"` // physical GPUs; Device.GPU refers to them by UUID
	Unreadable []gpu.Unreadable `json:"unreadable,omitempty"`
}

// Config describes the config in effect.
type Config struct {
	Path   string    `json:"path,omitempty"` // empty: no file, all defaults
	Loaded time.Time `json:"loaded"`
	Error  string    `json:"error,omitempty"` // why the current file is not in effect

	// LabelsError is why sections that select by label are not applied or may be stale; empty if there is no such
	// problem or no such section.
	LabelsError string `json:"labelsError,omitempty"`
}

// Driver describes the NVIDIA driver according to the latest inventory.
type Driver struct {
	gpu.Driver
	Root  string `json:"root,omitempty"` // driver root, a path on the node
	Error string `json:"error,omitempty"`
}

// Spec describes the CDI spec of the agent.
type Spec struct {
	Path    string `json:"path"`
	Devices int    `json:"devices"` // GPUs and MIG devices
	Error   string `json:"error,omitempty"`
}

// Runtime describes the container runtime as last inspected.
type Runtime struct {
	Name     string   `json:"name,omitempty"`
	Version  string   `json:"version,omitempty"`
	CDI      bool     `json:"cdi"`
	SpecDirs []string `json:"specDirs,omitempty"`
	Error    string   `json:"error,omitempty"`
}

// Kubelet describes the registrations with the kubelet.
type Kubelet struct {
	Resources []Resource `json:"resources"`
	// PodsError is why Device.AllocatedTo is missing or stale.
	PodsError string `json:"podsError,omitempty"`
}

// Resource describes the registration of a resource with the kubelet.
type Resource struct {
	Name       string    `json:"name"`
	Registered time.Time `json:"registered,omitzero"` // zero if not registered
	Error      string    `json:"error,omitempty"`
}

// NRI describes the connection to the Node Resource Interface of the container runtime.
type NRI struct {
	Runtime   string    `json:"runtime,omitempty"`
	Connected time.Time `json:"connected,omitzero"` // zero if not connected
	Error     string    `json:"error,omitempty"`    // why it is not connected; containers are not checked then
}

// DRA describes the DRA driver and the ResourceSlices of the node.
type DRA struct {
	Driver     string    `json:"driver"`
	Registered time.Time `json:"registered,omitzero"` // with the kubelet; zero if not registered
	Error      string    `json:"error,omitempty"`

	Slices  Slices         `json:"slices"`
	Claims  []Claim        `json:"claims,omitempty"`  // prepared on this node
	Waiting []WaitingClaim `json:"waiting,omitempty"` // that wait for devices while the kubelet waits for them to be prepared
	Refused []Refusal      `json:"refused,omitempty"` // claims whose latest call to prepare or unprepare failed
}

// Claim is a prepared ResourceClaim.
type Claim struct {
	Namespace string    `json:"namespace"`
	Name      string    `json:"name"`
	UID       string    `json:"uid"`
	Devices   []string  `json:"devices"`           // IDs
	Pods      []string  `json:"pods"`              // names, as of the latest call of the kubelet
	Prepared  time.Time `json:"prepared,omitzero"` // zero if only the kubelet's checkpoint lists the claim
	Damaged   string    `json:"damaged,omitempty"` // why its file in the state directory cannot be read; only UID is known then
}

// WaitingClaim is a ResourceClaim whose devices are not available yet while the kubelet waits for it to be prepared.
type WaitingClaim struct {
	Namespace string    `json:"namespace"`
	Name      string    `json:"name"`
	UID       string    `json:"uid"`
	Message   string    `json:"message"`
	Since     time.Time `json:"since"`
}

// Refusal is the latest failed call of the kubelet for a ResourceClaim.
type Refusal struct {
	Namespace string    `json:"namespace"`
	Name      string    `json:"name"`
	UID       string    `json:"uid"`
	Reason    string    `json:"reason"` // as in the metric gpucdi_dra_refusals_total
	Message   string    `json:"message"`
	At        time.Time `json:"at"`
}

// Slices describes the ResourceSlices according to the API server.
type Slices struct {
	Devices int      `json:"devices"`
	Error   string   `json:"error,omitempty"`   // why they are not up to date
	Dropped []string `json:"dropped,omitempty"` // fields that the API server does not store, since a feature gate is disabled
	Foreign []string `json:"foreign,omitempty"` // slices of this driver and node that another program wrote
}

// Containers lists running containers whose GPUs differ from their allocations, and privileged containers.
type Containers struct {
	Foreign    []Container `json:"foreign,omitempty"`    // with GPUs that are not allocated to them
	Lacking    []Container `json:"lacking,omitempty"`    // without GPUs that are allocated to them
	Privileged []string    `json:"privileged,omitempty"` // names of containers that can use every device of the node
	Error      string      `json:"error,omitempty"`      // why the lists are missing or stale
}

// Container is a container with the GPUs and MIG devices in question.
type Container struct {
	Name  string   `json:"name"` // namespace/pod/container, or the container runtime's name outside Kubernetes
	GPUs  []string `json:"gpus"` // UUIDs
	InPod bool     `json:"inPod"`
}

// Device is a GPU or MIG device in an extended resource or in the ResourceSlices, including waiting and draining ones.
// Its JSON also has Health, under the key health.
type Device struct {
	ID          string   `json:"id"`
	Index       string   `json:"index"`              // "5" for a GPU, "5:1" for a MIG device of it
	Resource    string   `json:"resource"`           // extended resource; for a device in the ResourceSlices, the DRA driver
	GPU         string   `json:"gpu"`                // UUID of the physical GPU
	Features    []string `json:"features,omitempty"` // driver capabilities that its containers get in addition to those of the node
	Replicas    []string `json:"replicas,omitempty"` // its device IDs in the kubelet's list if it is shared; nil if ID is the only one
	AllocatedTo []Holder `json:"allocatedTo,omitempty"`

	ReplicasAllocated int `json:"replicasAllocated,omitempty"` // number of its IDs that are allocated

	// Isolation levels for the pods that share the device. MemoryIsolation is "none", "driver" or "hardware", and
	// ComputeIsolation "timeslice", "ceiling" or "hardware". Both are "hardware" if the device is not shared.
	MemoryIsolation  string `json:"memoryIsolation"`
	ComputeIsolation string `json:"computeIsolation"`

	// Sharing is nil unless claims share the device, or pods through replicas with limits.
	Sharing *Sharing `json:"sharing,omitempty"`

	Fault gpu.Fault `json:"fault,omitzero"`

	// Set if the device is unavailable without a fault.
	State  Health    `json:"state,omitempty"` // Waiting or Draining
	Since  time.Time `json:"since,omitzero"`
	Reason string    `json:"reason,omitempty"`
	Awaits string    `json:"awaits,omitempty"` // what a draining device waits for
}

// Sharing describes how claims or pods share a device.
type Sharing struct {
	Capacity Amount  `json:"capacity"`         // of the device for claims; zero for replicas
	Free     Amount  `json:"free"`             // for claims
	Shares   []Share `json:"shares,omitempty"` // of prepared claims, or of pods with replicas
}

// Amount is a part of a shared device.
type Amount struct {
	Cores       uint64 `json:"cores,omitempty"` // compute time, 100 for all of the device
	MemoryBytes uint64 `json:"memoryBytes,omitempty"`
	Replicas    uint64 `json:"replicas,omitempty"` // of a device that is shared by replicas
}

// Share is the part of a shared device that is allocated to a prepared claim, or to a pod through replicas with limits.
type Share struct {
	Namespace string   `json:"namespace"`
	Claim     string   `json:"claim,omitempty"` // empty for replicas
	Pods      []string `json:"pods"`            // names; of a claim, as of the latest call of the kubelet

	// Containers are the names of the containers that have a replica of the pod, or that reference the claim. The kubelet
	// reports them, except for init containers other than sidecars.
	Containers []string `json:"containers,omitempty"`

	Amount
	MemoryLimited  bool `json:"memoryLimited"`            // the driver limits the pod to MemoryBytes
	ComputeCeiling int  `json:"computeCeiling,omitempty"` // of the compute time, enforced by MPS, in percent of the device; 0: none

	// MemoryUsed is the memory of the device that the pod uses through all of its claims or replicas, in bytes, up to 10 s old. It is
	// nil if it is unknown, as for pods that the driver does not limit.
	MemoryUsed *uint64 `json:"memoryUsedBytes,omitempty"`
}

// Excluded is a GPU or MIG device that is not advertised because of the config.
type Excluded struct {
	ID    string `json:"id"`
	Index string `json:"index"` // as in Device
	Rule  string `json:"rule"`  // key of the rule in the config: "resources[0]"
}

// Health summarizes whether a device is available.
type Health string

// The values of Health.
const (
	Healthy   Health = "healthy"
	Unhealthy Health = "unhealthy" // it has a fault
	Waiting   Health = "waiting"   // listed as unhealthy: a pod may hold a device that overlaps it, or its CDI device is not verified yet; metrics count it as draining
	Draining  Health = "draining"  // listed as unhealthy: no longer wanted, but a pod may hold it
)

// Health returns the health of the device.
func (d Device) Health() Health {
	switch {
	case !d.Fault.None():
		return Unhealthy
	case d.State != "":
		return d.State
	}
	return Healthy
}

// Healthy reports whether the device is available.
func (d Device) Healthy() bool { return d.Health() == Healthy }

// MarshalJSON implements json.Marshaler.
func (d Device) MarshalJSON() ([]byte, error) {
	type fields Device
	return json.Marshal(struct {
		fields
		Health Health `json:"health"`
	}{fields(d), d.Health()})
}

// IDs returns the IDs of the device in the kubelet's list.
func (d Device) IDs() []string {
	if d.Replicas != nil {
		return d.Replicas
	}
	return []string{d.ID}
}

// Holder is a container that a device is allocated to.
type Holder struct {
	Namespace string `json:"namespace"`
	Pod       string `json:"pod"`
	Container string `json:"container"`
	Claim     string `json:"claim,omitempty"` // ResourceClaim in Namespace; empty for a device of an extended resource
}

// GPU is a physical GPU with its latest telemetry. If the GPU itself has no fault, Fault is that of one of its devices,
// or the one that affects all devices.
type GPU struct {
	gpu.GPU
	Telemetry gpu.Telemetry `json:"telemetry"`
	Usage     []Usage       `json:"usage,omitempty"`
}

// Usage is the usage of a GPU or MIG device by a container. The values are 0 if none of its processes uses the device,
// and nil if the GPU or the driver does not support them.
type Usage struct {
	Device      string   `json:"device"` // UUID of the GPU or MIG device
	Namespace   string   `json:"namespace"`
	Pod         string   `json:"pod"`
	Container   string   `json:"container"`
	MemoryUsed  *uint64  `json:"memoryUsedBytes,omitempty"`
	Utilization *float64 `json:"utilization,omitempty"` // fraction of time in which its kernels ran, 0 to 1
}

// Product returns the product name of a device; for a MIG device it includes the profile.
func (n Node) Product(d Device) string {
	g := n.GPU(d.GPU)
	if m, isMIG := g.MIGDevice(d.ID); isMIG {
		return g.Product + " MIG " + m.Profile
	}
	return g.Product
}

// MemoryBytes returns the memory size of a device.
func (n Node) MemoryBytes(d Device) uint64 {
	g := n.GPU(d.GPU)
	if m, isMIG := g.MIGDevice(d.ID); isMIG {
		return m.MemoryBytes
	}
	return g.MemoryBytes
}

// Inventory returns the physical GPUs.
func (n Node) Inventory() []gpu.GPU {
	gpus := make([]gpu.GPU, len(n.GPUs))
	for i, g := range n.GPUs {
		gpus[i] = g.GPU
	}
	return gpus
}

// GPU returns the physical GPU with that UUID, or the zero GPU if there is none.
func (n Node) GPU(uuid string) GPU {
	for _, g := range n.GPUs {
		if g.UUID == uuid {
			return g
		}
	}
	return GPU{}
}
