package nvml

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/gpucdi/gpucdi/gpu"
	"github.com/gpucdi/gpucdi/internal/host"
)

// Limits of what a driver reports, in bytes.
const (
	uuidLimit    = 63 // NVIDIA's have 40
	profileLimit = 40
	textLimit    = 100
	faultLimit   = 500
)

// maxMinor is the highest minor number that Linux has.
const maxMinor = 1<<20 - 1

// phrase is an error, which may be several, as a fault.
func phrase(err error) string { return host.Printable(err.Error(), faultLimit) }

// unread is the fault of a GPU or MIG device that the driver fails to describe.
func unread(err error) gpu.Fault { return unreadable(gpu.RemedyKernelLog, "%s", phrase(err)) }

func unreadable(remedy, format string, args ...any) gpu.Fault {
	return gpu.Fault{Code: gpu.FaultUnreadable, Message: fmt.Sprintf(format, args...), Remedy: remedy}
}

// What fixes a driver that reports what makes no sense.
const (
	resetOrUpdate = "reset the GPU, or update the driver"
	resetOrReload = "reset the GPU, or reload the driver"
	recreate      = "destroy and create them again"
	update        = "update the driver"
)

// isolate makes what a driver reports safe for everyone else: text is bounded and printable, and
// what makes no sense is a fault of that GPU or MIG device alone. A UUID that is invalid or not
// unique would make the CDI spec of all devices invalid; such a device cannot be named and is
// unreadable. Of GPUs with one device node, nobody knows whose it is.
func isolate(inv *gpu.Inventory) {
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
		if fault := nameFault(g.UUID, "GPU-", uuids); !fault.None() {
			inv.Unreadable = append(inv.Unreadable, gpu.Unreadable{Index: g.Index, Fault: fault})
			continue
		}
		isolateGPU(&g, minors)
		for _, lost := range isolateMIG(&g, uuids) {
			inv.Unreadable = append(inv.Unreadable, gpu.Unreadable{Index: g.Index, Fault: lost})
		}
		named = append(named, g)
	}
	inv.GPUs = named
	slices.SortStableFunc(inv.Unreadable, func(a, b gpu.Unreadable) int { return a.Index - b.Index })
}

// nameFault is why a UUID cannot be the name of a CDI device and the ID of a kubelet's; none when it
// can. uuids counts the devices that have it.
func nameFault(uuid, prefix string, uuids map[string]int) gpu.Fault {
	name, known := strings.CutPrefix(uuid, prefix)
	switch {
	case !known || len(uuid) > uuidLimit || !plain(name, "-"):
		return unreadable(resetOrUpdate, "UUID %q cannot name a device", host.Printable(uuid, textLimit))
	case uuids[uuid] > 1:
		return unreadable(resetOrUpdate, "UUID %s is that of %d devices, which cannot be told apart", uuid, uuids[uuid])
	}
	return gpu.Fault{}
}

// plain says whether text consists of ASCII letters and digits, and of others but at its ends.
func plain(text, others string) bool {
	const alphanumeric = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
	return text != "" && text == strings.Trim(text, others) && strings.Trim(text, alphanumeric+others) == ""
}

func isolateGPU(g *gpu.GPU, minors map[int]int) {
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
		fault = unreadable(resetOrUpdate, "minor number %d is that of no device node", g.Minor)
	case minors[g.Minor] > 1:
		fault = unreadable(resetOrReload, "minor number %d is that of %d GPUs, and /dev/nvidia%d may be either's", g.Minor, minors[g.Minor], g.Minor)
	default:
		return
	}
	g.Minor, g.Fault = gpu.MinorUnknown, cmp.Or(g.Fault, fault)
}

// isolateMIG drops the MIG devices that cannot be named, and returns why.
func isolateMIG(g *gpu.GPU, uuids map[string]int) (lost []gpu.Fault) {
	type instances struct{ gpu, compute int }
	owners := map[instances]int{}
	for _, m := range g.MIGDevices {
		owners[instances{m.GPUInstance, m.ComputeInstance}]++
	}
	var named []gpu.MIGDevice
	for _, m := range g.MIGDevices {
		if fault := nameFault(m.UUID, "MIG-", uuids); !fault.None() {
			fault.Message = fmt.Sprintf("MIG device %d: %s", m.Index, fault.Message)
			lost = append(lost, fault)
			continue
		}
		if m.Fault.None() && owners[instances{m.GPUInstance, m.ComputeInstance}] > 1 {
			m.Fault = unreadable(recreate, "another MIG device has GPU instance %d and compute instance %d too", m.GPUInstance, m.ComputeInstance)
		}
		if m.Profile != "" && (len(m.Profile) > profileLimit || !plain(m.Profile, ".+-")) {
			m.Fault = cmp.Or(m.Fault, unreadable(update, "profile %q cannot name a resource", host.Printable(m.Profile, textLimit)))
			m.Profile = ""
		}
		named = append(named, m)
	}
	g.MIGDevices = named
	return lost
}
