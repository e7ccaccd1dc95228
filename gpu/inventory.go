package gpu

import (
	"fmt"
	"slices"
)

// Inventory is everything that the driver said about a node's GPUs at one
// moment. It is immutable: a later reading is a new Inventory.
type Inventory struct {
	Driver Driver `json:"driver"`

	// GPUs that told at least their UUID, by ascending Index. One that is
	// there but cannot be given out has its Fault set.
	GPUs []GPU `json:"gpus"`

	// Unreadable are the GPUs and MIG devices without a UUID that is valid and
	// unique. They have no name that the kubelet could use, so they can only be
	// reported.
	Unreadable []Unreadable `json:"unreadable,omitempty"`
}

// Driver is the node's kernel driver and what it supports.
type Driver struct {
	Version string      `json:"version"` // as the driver writes it: "580.95.05"
	CUDA    CUDAVersion `json:"cuda"`

	// Confidential says that confidential computing is on: what goes to and from
	// the GPUs is encrypted.
	Confidential bool `json:"confidential,omitempty"`
}

// CUDAVersion is the newest CUDA that the driver serves.
type CUDAVersion struct{ Major, Minor int }

// MarshalText implements encoding.TextMarshaler.
func (v CUDAVersion) MarshalText() ([]byte, error) { return []byte(v.String()), nil }

// UnmarshalText implements encoding.TextUnmarshaler.
func (v *CUDAVersion) UnmarshalText(text []byte) error {
	_, err := fmt.Sscanf(string(text), "%d.%d", &v.Major, &v.Minor)
	return err
}

func (v CUDAVersion) String() string { return fmt.Sprintf("%d.%d", v.Major, v.Minor) }

// GPU is one physical GPU.
type GPU struct {
	UUID  string `json:"uuid"`  // "GPU-…", NVML's own spelling
	Index int    `json:"index"` // NVML's enumeration order; changes when a GPU leaves the bus
	Minor int    `json:"minor"` // the N of /dev/nvidiaN, not the Index; or MinorUnknown

	PCIBusID string `json:"pciBusID"` // as sysfs spells it: "0000:18:00.0"
	NUMANode int    `json:"numaNode"` // NUMAUnknown when the platform does not tell
	PCIClass string `json:"pciClass"` // as sysfs spells it: "0x030200"; empty when the platform does not tell

	Product           string            `json:"product"` // "NVIDIA H100 80GB HBM3"
	Architecture      Architecture      `json:"architecture"`
	ComputeCapability ComputeCapability `json:"computeCapability"`
	MemoryBytes       uint64            `json:"memoryBytes"` // total framebuffer memory
	MIG               MIGMode           `json:"mig"`

	// Clique is the part of a fabric of several nodes in which the GPU reaches
	// others by NVLink: the cluster's UUID, a dot and a number. Empty outside.
	Clique string `json:"clique,omitempty"`

	// VGPU is set for a virtual GPU, which a hypervisor made.
	VGPU *VGPU `json:"vgpu,omitempty"`

	// MIGDevices are what the GPU is cut into, by ascending Index.
	MIGDevices []MIGDevice `json:"migDevices,omitempty"`

	// Links leads to every other GPU of the inventory that could be asked
	// about, by the peer's Index.
	Links []Link `json:"links,omitempty"`

	// Fault is why the GPU cannot be allocated.
	Fault Fault `json:"fault,omitzero"`
}

// VGPU is what a virtual GPU tells of its host's driver, empty where it does not.
type VGPU struct {
	HostDriver string `json:"hostDriver,omitempty"` // "550.127.06"
	HostBranch string `json:"hostBranch,omitempty"` // "r550_00"
}

// MinorUnknown is the Minor of a GPU that has a fault, since its device node is
// not known.
const MinorUnknown = -1

// NUMAUnknown is the NUMANode of a GPU whose platform does not tell it, as in
// sysfs.
const NUMAUnknown = -1

// ComputeCapability is the CUDA compute capability, 9.0 for an H100.
type ComputeCapability struct{ Major, Minor int }

// MarshalText implements encoding.TextMarshaler.
func (c ComputeCapability) MarshalText() ([]byte, error) { return []byte(c.String()), nil }

// UnmarshalText implements encoding.TextUnmarshaler.
func (c *ComputeCapability) UnmarshalText(text []byte) error {
	_, err := fmt.Sscanf(string(text), "%d.%d", &c.Major, &c.Minor)
	return err
}

func (c ComputeCapability) String() string { return fmt.Sprintf("%d.%d", c.Major, c.Minor) }

// Unreadable is a GPU that the driver counts, or a MIG device of one, and that
// has no name.
type Unreadable struct {
	Index int   `json:"index"` // of the GPU
	Fault Fault `json:"fault"`
}

// Find returns the GPU with that UUID, or the one that the MIG device with that
// UUID is a part of.
func (inv *Inventory) Find(uuid string) (GPU, bool) {
	i := slices.IndexFunc(inv.GPUs, func(g GPU) bool {
		_, part := find(g.MIGDevices, uuid)
		return part || g.UUID == uuid
	})
	if i < 0 {
		return GPU{}, false
	}
	return inv.GPUs[i], true
}

// Fault returns the fault of the GPU or MIG device with that UUID.
func (inv *Inventory) Fault(uuid string) Fault {
	g, _ := inv.Find(uuid)
	if m, part := find(g.MIGDevices, uuid); part {
		return m.Fault
	}
	return g.Fault
}
