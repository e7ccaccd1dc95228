package dra

import (
	"fmt"
	"strconv"

	"github.com/gpucdi/gpucdi/allocator"
	"github.com/gpucdi/gpucdi/cluster"
	"github.com/gpucdi/gpucdi/gpu"
)

// Offer is a GPU or MIG device to publish in the ResourceSlices of the node.
type Offer struct {
	ID       string    // UUID
	Resource string    // "nvidia.com/gpu", or the name that a rule gave it
	Fault    gpu.Fault // of its entry in the ledger

	Isolation allocator.Isolation // of claims that share it
	Capacity  allocator.Amount    // total of all claims that share it; zero if claims do not share it
}

// Devices returns the devices of the node's ResourceSlices, in the order of offers. Even if the inventory lacks a
// device, it has every attribute that docs/dra-attributes.md does not list as optional: a CEL expression that reads a
// missing attribute fails the scheduling of its pod. Offers without a valid device name are omitted. effect is the
// effect of the taints of faulty devices.
func Devices(inv *gpu.Inventory, offers []Offer, effect cluster.TaintEffect) []cluster.Device {
	b := deviceBuilder{
		inv: inv, sets: setsOf(inv, offers), domains: allocator.NVLinkDomains(inv), switches: commonSwitches(inv),
	}
	devices := make([]cluster.Device, 0, len(offers))
	for _, o := range offers {
		name, ok := DeviceName(o.ID)
		if !ok {
			continue
		}
		d := b.device(o)
		d.Name = name
		if d.AllowMultipleAllocations = o.shared(); o.shared() {
			o.share(&d)
		}
		if !o.Fault.None() {
			d.Taints = []cluster.Taint{taint(o.Fault.Code, effect)}
		}
		devices = append(devices, d)
	}
	return devices
}

// setsOf returns the sets of the GPUs of each resource. A DeviceClass selects the devices of one resource, so a set
// with devices of two resources could never be allocated.
func setsOf(inv *gpu.Inventory, offers []Offer) map[string]allocator.Sets {
	ids := map[string][]string{}
	for _, o := range offers {
		ids[o.Resource] = append(ids[o.Resource], o.ID)
	}
	sets := make(map[string]allocator.Sets, len(ids))
	for resource, uuids := range ids {
		sets[resource] = allocator.NewSets(inv, uuids)
	}
	return sets
}

// commonSwitches returns the PCIe switch of each GPU by UUID: the nearest one that another GPU shares, or the nearest
// one if none does. Without a switch, it is the GPU's own PCI bus ID.
func commonSwitches(inv *gpu.Inventory) map[string]string {
	count := map[string]int{}
	for _, g := range inv.GPUs {
		for _, s := range g.PCIeSwitches {
			count[s]++
		}
	}
	switches := make(map[string]string, len(inv.GPUs))
	for _, g := range inv.GPUs {
		nearest := g.PCIBusID
		if len(g.PCIeSwitches) > 0 {
			nearest = g.PCIeSwitches[0]
		}
		for _, s := range g.PCIeSwitches {
			if count[s] > 1 {
				nearest = s
				break
			}
		}
		switches[g.UUID] = nearest
	}
	return switches
}

// deviceBuilder builds the devices of a node from data that they share.
type deviceBuilder struct {
	inv      *gpu.Inventory
	sets     map[string]allocator.Sets // by resource
	domains  map[string]string         // NVLink domains, by UUID
	switches map[string]string         // PCIe switches, by UUID
}

// device returns a device without name and taints. If the inventory lacks it, its attributes have zero values.
func (b *deviceBuilder) device(o Offer) cluster.Device {
	g, _ := b.inv.Find(o.ID)
	attributes := attributes{}
	attributes.addCommon(b.inv.Driver, g)
	attributes.set(attributeUUID, o.ID)
	attributes.set(attributeResource, o.Resource)
	attributes.set(attributeMemoryIsolation, string(o.Isolation.Memory))
	attributes.set(attributeComputeIsolation, string(o.Isolation.Compute))
	attributes.set(attributePCIeSwitch, b.switches[g.UUID])
	if isMIG(o.ID) {
		m, _ := g.MIGDevice(o.ID)
		attributes.set(attributeType, typeMIG)
		attributes.set(attributeParentUUID, g.UUID)
		attributes.set(attributeProfile, m.Profile)
		return cluster.Device{Attributes: attributes, Capacity: migCapacity(m)}
	}
	attributes.set(attributeType, typeGPU)
	attributes.set(attributeNVLinkDomain, b.domains[o.ID])
	for _, size := range allocator.SetSizes {
		attributes.set(attributeSet+strconv.Itoa(size), b.sets[o.Resource].Name(o.ID, size))
	}
	return cluster.Device{Attributes: attributes, Capacity: map[string]cluster.Capacity{capacityMemory: cluster.Bytes(g.MemoryBytes)}}
}

// maxMemorySlices is the maximum number of memory slices of a GPU. The API server accepts at most 32 attributes and
// capacities of a device.
const maxMemorySlices = 8

// migCapacity returns the capacities of a MIG device. Unless the device occupies maxMemorySlices, it has a capacity for
// each slice that it occupies, by which a claim can request a placement.
func migCapacity(m gpu.MIGDevice) map[string]cluster.Capacity {
	capacity := map[string]cluster.Capacity{capacityMemory: cluster.Bytes(m.MemoryBytes)}
	for name, n := range map[string]int{
		capacityMultiprocessors: m.Multiprocessors,
		capacityCopyEngines:     m.Engines.Copy,
		capacityDecoders:        m.Engines.Decoder,
		capacityEncoders:        m.Engines.Encoder,
		capacityJPEGEngines:     m.Engines.JPEG,
		capacityOFAEngines:      m.Engines.OFA,
	} {
		capacity[name] = cluster.Count(uint64(max(n, 0)))
	}
	if m.Placement.Size >= maxMemorySlices {
		return capacity
	}
	for i := range maxMemorySlices {
		if i >= m.Placement.Start && i-m.Placement.Start < m.Placement.Size {
			capacity[fmt.Sprintf("%s%d", capacityMemorySlice, i)] = cluster.Count(1)
		}
	}
	return capacity
}
