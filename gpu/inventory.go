package gpu

import (
	"fmt"
	"slices"
)

// Inventory is the state of the node's driver and GPUs at one point in time, as the driver reported it. It is
// immutable.
type Inventory struct {
	// Platform is empty except on WSL2 and Jetson, where GPUs have no minor number. On a Jetson they have no PCI bus ID
	// either.
	Platform Platform `json:"platform,omitempty"`

	Driver Driver `json:"driver"`

	// GPUs are those with a valid and unique UUID, by ascending Index, followed by those that Retain appends.
	GPUs []GPU `json:"gpus"`

	// Unreadable are the GPUs and MIG devices without a valid and unique UUID. They cannot be advertised to the
	// kubelet because they have no device ID.
	Unreadable []Unreadable `json:"unreadable,omitempty"`
}

// Driver is the node's NVIDIA driver.
type Driver struct {
	Version string      `json:"version"` // "580.95.05"; on a Jetson without NVML, the release of Jetson Linux: "35.4.1"
	CUDA    CUDAVersion `json:"cuda"`    // zero if unknown

	// Confidential reports whether confidential computing is enabled.
	Confidential bool `json:"confidential,omitempty"`
}

// CUDAVersion is the newest CUDA version that the driver supports.
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
	UUID  string `json:"uuid"`  // "GPU-…", as NVML reports it except on a Jetson
	Index int    `json:"index"` // NVML's enumeration order; changes when a GPU leaves the bus
	Minor int    `json:"minor"` // N of /dev/nvidiaN, unrelated to Index; or MinorUnknown

	PCIBusID string `json:"pciBusID"` // in the format of sysfs: "0000:18:00.0"; empty on a Jetson
	NUMANode int    `json:"numaNode"` // or NUMAUnknown
	PCIClass string `json:"pciClass"` // in the format of sysfs: "0x030200"; empty if unknown

	// PCIeRoot is the PCIe root complex, in the format of sysfs: "pci0000:17". PCIeSwitches are the switches between
	// the root complex and the GPU, nearest to the GPU first, as the PCI bus IDs of their upstream ports. Both are
	// empty if unknown.
	PCIeRoot     string   `json:"pcieRoot,omitempty"`
	PCIeSwitches []string `json:"pcieSwitches,omitempty"`

	Product           string            `json:"product"`         // "NVIDIA H100 80GB HBM3"
	Brand             string            `json:"brand,omitempty"` // "Nvidia", as NVIDIA's tools write it; empty if unknown
	Architecture      Architecture      `json:"architecture"`
	ComputeCapability ComputeCapability `json:"computeCapability"`
	MemoryBytes       uint64            `json:"memoryBytes"` // total framebuffer memory; on a Jetson, that of the system
	MIG               MIGMode           `json:"mig"`
	MemoryLimits      MemoryLimits      `json:"memoryLimits,omitempty"`

	// AddressingMode is how the GPU accesses system-allocated memory: "HMM", "ATS" or "None". Empty if unknown.
	AddressingMode string `json:"addressingMode,omitempty"`

	// Clique is the GPU's partition of a multi-node NVLink fabric, as CLUSTER_UUID.CLIQUE_ID. Empty if the GPU is not
	// part of one.
	Clique string `json:"clique,omitempty"`

	// VGPU is set if the GPU is an NVIDIA vGPU.
	VGPU *VGPU `json:"vgpu,omitempty"`

	// MIGDevices are in ascending order of Index, followed by those that Retain appends.
	MIGDevices []MIGDevice `json:"migDevices,omitempty"`

	// Links has an entry for each other GPU that was read at the same time, by ascending Index of the peer. It is empty
	// for a GPU that is missing from the latest inventory.
	Links []Link `json:"links,omitempty"`

	// Fault is the reason that the GPU cannot be allocated.
	Fault Fault `json:"fault,omitzero"`

	// Partial is set if some attributes could not be read: they are zero or unknown, and MIGDevices may be incomplete.
	// Fault has the reason.
	Partial bool `json:"partial,omitempty"`
}

// VGPU describes the host driver of a vGPU. Its fields are empty if unknown.
type VGPU struct {
	HostDriver string `json:"hostDriver,omitempty"` // "550.127.06"
	HostBranch string `json:"hostBranch,omitempty"` // "r550_00"
}

// MinorUnknown is the Minor of a GPU whose minor number is not known. Such a GPU has a fault, except on platforms whose
// GPUs have no minor number.
const MinorUnknown = -1

// NUMAUnknown is the NUMANode of a GPU whose NUMA node the platform does not report. sysfs uses the same value.
const NUMAUnknown = -1

// ComputeCapability is the CUDA compute capability, such as 9.0 for an H100.
type ComputeCapability struct{ Major, Minor int }

// MarshalText implements encoding.TextMarshaler.
func (c ComputeCapability) MarshalText() ([]byte, error) { return []byte(c.String()), nil }

// UnmarshalText implements encoding.TextUnmarshaler.
func (c *ComputeCapability) UnmarshalText(text []byte) error {
	_, err := fmt.Sscanf(string(text), "%d.%d", &c.Major, &c.Minor)
	return err
}

func (c ComputeCapability) String() string { return fmt.Sprintf("%d.%d", c.Major, c.Minor) }

// Unreadable is a GPU or MIG device that the driver reports without a valid and unique UUID.
type Unreadable struct {
	Index int   `json:"index"` // of the GPU, or of the MIG device's GPU
	Fault Fault `json:"fault"`
}

// Find returns the GPU with that UUID, or the parent GPU of the MIG device with that UUID.
func (inv *Inventory) Find(uuid string) (GPU, bool) {
	i := slices.IndexFunc(inv.GPUs, func(g GPU) bool {
		_, found := find(g.MIGDevices, uuid)
		return found || g.UUID == uuid
	})
	if i < 0 {
		return GPU{}, false
	}
	return inv.GPUs[i], true
}

// Fault returns the fault of the GPU or MIG device with that UUID; none for an unknown UUID.
func (inv *Inventory) Fault(uuid string) Fault {
	g, _ := inv.Find(uuid)
	if m, found := find(g.MIGDevices, uuid); found {
		return m.Fault
	}
	return g.Fault
}
