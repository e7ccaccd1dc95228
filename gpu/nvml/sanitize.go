package nvml

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/gpucdi/gpucdi/gpu"
	"github.com/gpucdi/gpucdi/internal/host"
)

// Length limits of strings from the driver, in bytes.
const (
	uuidLimit    = 63 // NVIDIA's UUIDs have 40
	profileLimit = 40
	textLimit    = 100
	faultLimit   = 500
)

// maxMinor is the highest minor number that Linux supports.
const maxMinor = 1<<20 - 1

// errorText returns the text of err, which may be a joined error, as the message of a fault.
func errorText(err error) string { return host.Printable(err.Error(), faultLimit) }

// readFault returns the fault of a GPU or MIG device whose attributes could not be read.
func readFault(err error) gpu.Fault { return unreadable(gpu.RemedyKernelLog, "%s", errorText(err)) }

func unreadable(remedy, format string, args ...any) gpu.Fault {
	return gpu.Fault{Code: gpu.FaultUnreadable, Message: fmt.Sprintf(format, args...), Remedy: remedy}
}

// Remedies for invalid data from the driver.
const (
	resetOrUpdate = "reset the GPU, or update the driver"
	resetOrReload = "reset the GPU, or reload the driver"
	recreate      = "destroy and recreate the MIG devices"
	update        = "update the driver"
)

// sanitize makes the driver's data safe to use: strings are bounded and printable, and invalid data is a fault of only
// the GPUs or MIG devices that have it. A device whose UUID is invalid or not unique becomes Unreadable, because it
// would make the CDI spec invalid for all devices. GPUs with the same minor number have a fault, because it is unknown
// which of them the device node belongs to.
func sanitize(inv *gpu.Inventory) {
	inv.Driver.Version = host.Printable(inv.Driver.Version, textLimit)
	uuids, minors := map[string]int{}, map[int]int{}
	for _, g := range inv.GPUs {
		uuids[g.UUID]++
		minors[g.Minor]++
		for _, m := range g.MIGDevices {
			uuids[m.UUID]++
		}
	}
	var named []gpu.GPU
	for _, g := range inv.GPUs {
		if fault := uuidFault(g.UUID, "GPU-", uuids); !fault.None() {
			inv.Unreadable = append(inv.Unreadable, gpu.Unreadable{Index: g.Index, Fault: fault})
			continue
		}
		sanitizeGPU(&g, minors)
		for _, fault := range sanitizeMIGDevices(&g, uuids) {
			inv.Unreadable = append(inv.Unreadable, gpu.Unreadable{Index: g.Index, Fault: fault})
		}
		named = append(named, g)
	}
	inv.GPUs = named
	slices.SortStableFunc(inv.Unreadable, func(a, b gpu.Unreadable) int { return a.Index - b.Index })
}

// uuidFault returns a fault if a UUID cannot be used as a CDI device name and a device ID of the kubelet. uuids has the
// number of devices with each UUID.
func uuidFault(uuid, prefix string, uuids map[string]int) gpu.Fault {
	name, found := strings.CutPrefix(uuid, prefix)
	switch {
	case !found || len(uuid) > uuidLimit || !isName(name, "-"):
		return unreadable(resetOrUpdate, "UUID %q is not a valid device name", host.Printable(uuid, textLimit))
	case uuids[uuid] > 1:
		return unreadable(resetOrUpdate, "UUID %s is not unique, %d devices have it", uuid, uuids[uuid])
	}
	return gpu.Fault{}
}

// isName reports whether text is not empty and consists of ASCII letters, digits and the characters in others, which
// must not be first or last.
func isName(text, others string) bool {
	const alphanumeric = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
	return text != "" && text == strings.Trim(text, others) && strings.Trim(text, alphanumeric+others) == ""
}

func sanitizeGPU(g *gpu.GPU, minors map[int]int) {
	for _, text := range []*string{&g.Product, &g.PCIClass, &g.Clique} {
		*text = host.Printable(*text, textLimit)
	}
	if g.VGPU != nil {
		g.VGPU = &gpu.VGPU{HostDriver: host.Printable(g.VGPU.HostDriver, textLimit), HostBranch: host.Printable(g.VGPU.HostBranch, textLimit)}
	}
	var fault gpu.Fault
	switch {
	case g.Minor == gpu.MinorUnknown:
		return
	case g.Minor < 0 || g.Minor > maxMinor:
		fault = unreadable(resetOrUpdate, "minor number %d is out of range", g.Minor)
	case minors[g.Minor] > 1:
		fault = unreadable(resetOrReload, "minor number %d is not unique, %d GPUs have it", g.Minor, minors[g.Minor])
	default:
		return
	}
	g.Minor, g.Fault = gpu.MinorUnknown, cmp.Or(g.Fault, fault)
}

// sanitizeMIGDevices removes the MIG devices without a valid and unique UUID and returns their faults.
func sanitizeMIGDevices(g *gpu.GPU, uuids map[string]int) (faults []gpu.Fault) {
	type instances struct{ gpu, compute int }
	owners := map[instances]int{}
	for _, m := range g.MIGDevices {
		if !m.Partial { // the IDs of a partial device may not have been read
			owners[instances{m.GPUInstance, m.ComputeInstance}]++
		}
	}
	var named []gpu.MIGDevice
	for _, m := range g.MIGDevices {
		if fault := uuidFault(m.UUID, "MIG-", uuids); !fault.None() {
			fault.Message = fmt.Sprintf("MIG device %d: %s", m.Index, fault.Message)
			faults = append(faults, fault)
			continue
		}
		if m.Fault.None() && owners[instances{m.GPUInstance, m.ComputeInstance}] > 1 {
			m.Fault = unreadable(recreate, "GPU instance %d and compute instance %d are not unique to this MIG device", m.GPUInstance, m.ComputeInstance)
		}
		if m.Profile != "" && (len(m.Profile) > profileLimit || !isName(m.Profile, ".+-")) {
			m.Fault = cmp.Or(m.Fault, unreadable(update, "profile %q is not valid in a resource name", host.Printable(m.Profile, textLimit)))
			m.Profile = ""
		}
		named = append(named, m)
	}
	g.MIGDevices = named
	return faults
}
