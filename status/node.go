package status

import (
	"time"

	"github.com/gpucdi/gpucdi/gpu"
)

// Node is what the agent knew of its node at one moment.
type Node struct {
	Name    string `json:"name,omitempty"` // as Kubernetes calls it, where the agent was told
	Version string `json:"version"`        // of gpucdi

	Config  Config  `json:"config"`
	Driver  Driver  `json:"driver"`
	Spec    Spec    `json:"spec"`
	Runtime Runtime `json:"runtime"`
	Kubelet Kubelet `json:"kubelet"`

	Devices    []Device         `json:"devices"`
	GPUs       []GPU            `json:"gpus"` // the physical ones, which devices name by UUID
	Unreadable []gpu.Unreadable `json:"unreadable,omitempty"`
}

// Config is the config that was last applied.
type Config struct {
	Path    string    `json:"path,omitempty"` // empty: every key has its default
	Loaded  time.Time `json:"loaded"`
	Trouble string    `json:"trouble,omitempty"` // why the current file was refused

	// LabelsTrouble is why sections that select by label are not applied, or may be out
	// of date; empty where the file has none.
	LabelsTrouble string `json:"labelsTrouble,omitempty"`
}

// Driver is the driver as it was last read.
type Driver struct {
	gpu.Driver
	Root    string `json:"root,omitempty"` // the node's path
	Trouble string `json:"trouble,omitempty"`
}

// Spec is the CDI spec that the agent keeps.
type Spec struct {
	Path    string `json:"path"`
	Devices int    `json:"devices"` // GPUs and MIG devices
	Trouble string `json:"trouble,omitempty"`
}

// Runtime is the container runtime as it was last asked.
type Runtime struct {
	Name     string   `json:"name,omitempty"`
	Version  string   `json:"version,omitempty"`
	CDI      bool     `json:"cdi"`
	SpecDirs []string `json:"specDirs,omitempty"`
	Trouble  string   `json:"trouble,omitempty"`
}

// Kubelet is what the kubelet was told, and what it tells.
type Kubelet struct {
	Resources []Resource `json:"resources"`
	// PodsTrouble is why it is not known who holds the devices.
	PodsTrouble string `json:"podsTrouble,omitempty"`
}

// Resource is where a resource stands with the kubelet.
type Resource struct {
	Name       string    `json:"name"`
	Registered time.Time `json:"registered,omitzero"` // since when; zero when it is not
	Trouble    string    `json:"trouble,omitempty"`
}

// Device is a GPU or MIG device that the kubelet can hand out.
type Device struct {
	ID       string   `json:"id"`
	Index    string   `json:"index"` // what people call it: "5" a GPU, "5:1" a MIG device of it
	Resource string   `json:"resource"`
	GPU      string   `json:"gpu"`                // the UUID of the physical one
	Replicas []string `json:"replicas,omitempty"` // what the kubelet calls one that is shared; else it is the ID
	HeldBy   []Holder `json:"heldBy,omitempty"`

	Fault gpu.Fault `json:"fault,omitzero"`

	// Set if it has no fault, but is not available because of a planned change.
	State  string    `json:"state,omitempty"` // waiting or draining
	Since  time.Time `json:"since,omitzero"`
	Reason string    `json:"reason,omitempty"`
	Awaits string    `json:"awaits,omitempty"` // what ends the draining
}

// Healthy reports whether the device is available.
func (d Device) Healthy() bool { return d.Fault.None() && d.State == "" }

// IDs are what the kubelet calls the device.
func (d Device) IDs() []string {
	if d.Replicas != nil {
		return d.Replicas
	}
	return []string{d.ID}
}

// Holder is the container that holds a device.
type Holder struct {
	Namespace string `json:"namespace"`
	Pod       string `json:"pod"`
	Container string `json:"container"`
}

// GPU is a physical GPU with its latest measurements. If it has no fault of its own, its Fault is
// that of a device of it.
type GPU struct {
	gpu.GPU
	Telemetry gpu.Telemetry `json:"telemetry"`
}

// Product says what a device is: its GPU's product, and of a MIG device its
// profile.
func (n Node) Product(d Device) string {
	g := n.GPU(d.GPU)
	if m, part := g.MIGDevice(d.ID); part {
		return g.Product + " MIG " + m.Profile
	}
	return g.Product
}

// MemoryBytes is the memory that a device has.
func (n Node) MemoryBytes(d Device) uint64 {
	g := n.GPU(d.GPU)
	if m, part := g.MIGDevice(d.ID); part {
		return m.MemoryBytes
	}
	return g.MemoryBytes
}

// GPU returns the physical GPU of that UUID; the zero GPU if there is none.
func (n Node) GPU(uuid string) GPU {
	for _, g := range n.GPUs {
		if g.UUID == uuid {
			return g
		}
	}
	return GPU{}
}
