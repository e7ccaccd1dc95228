package gpu

import (
	"fmt"
	"slices"
)

// Inventory is everything that the driver said about a node's GPUs at one
// moment. It is immutable: a later reading is a new Inventory.
type Inventory struct {
	Driver Driver

	// GPUs that told at least their UUID, by ascending Index. One that is
	// there but cannot be given out has its Fault set.
	GPUs []GPU

	// Unreadable are the GPUs that would not even tell their UUID. They have
	// no name that the kubelet could use, so they can only be reported.
	Unreadable []Unreadable
}

// Driver is the node's kernel driver and what it supports.
type Driver struct {
	Version string // as the driver writes it: "580.95.05"
	CUDA    CUDAVersion
}

// CUDAVersion is the newest CUDA that the driver serves.
type CUDAVersion struct{ Major, Minor int }

func (v CUDAVersion) String() string { return fmt.Sprintf("%d.%d", v.Major, v.Minor) }

// GPU is one physical GPU.
type GPU struct {
	UUID  string // "GPU-…", NVML's own spelling
	Index int    // NVML's enumeration order; changes when a GPU leaves the bus
	Minor int    // the N of /dev/nvidiaN; not the Index

	PCIBusID string // as sysfs spells it: "0000:18:00.0"
	NUMANode int    // NUMAUnknown when the platform does not tell

	Product           string // "NVIDIA H100 80GB HBM3"
	Architecture      Architecture
	ComputeCapability ComputeCapability
	MemoryBytes       uint64 // total framebuffer memory
	MIG               MIGMode

	// Links leads to every other GPU of the inventory that could be asked
	// about, by the peer's Index.
	Links []Link

	// Fault says why the GPU cannot be given out; empty when it can. It is a
	// phrase for people: logs, events and tables show it as it is.
	Fault string
}

// NUMAUnknown is the NUMANode of a GPU whose platform does not tell it, as in
// sysfs.
const NUMAUnknown = -1

// ComputeCapability is the CUDA compute capability, 9.0 for an H100.
type ComputeCapability struct{ Major, Minor int }

func (c ComputeCapability) String() string { return fmt.Sprintf("%d.%d", c.Major, c.Minor) }

// Unreadable is a GPU that is counted by the driver but tells nothing.
type Unreadable struct {
	Index int
	Fault string
}

// Find returns the GPU with that UUID.
func (inv *Inventory) Find(uuid string) (GPU, bool) {
	i := slices.IndexFunc(inv.GPUs, func(g GPU) bool { return g.UUID == uuid })
	if i < 0 {
		return GPU{}, false
	}
	return inv.GPUs[i], true
}

// FaultGone is the Fault of a GPU that an earlier reading found and the
// present one does not.
const FaultGone = "gone: the driver no longer lists this GPU"

// Retain returns now with the GPUs of earlier that it lacks added at the end,
// marked with FaultGone. A pod may still hold such a GPU, and the kubelet
// must never lose a device that is allocated.
func Retain(earlier, now *Inventory) *Inventory {
	if earlier == nil {
		return now
	}
	kept := *now
	kept.GPUs = slices.Clone(now.GPUs)
	for _, g := range earlier.GPUs {
		if _, here := now.Find(g.UUID); here {
			continue
		}
		g.Fault, g.Links = FaultGone, nil
		kept.GPUs = append(kept.GPUs, g)
	}
	return &kept
}
