package allocator

import (
	"cmp"
	"fmt"
	"hash/crc32"
	"strings"
)

// replicaMark separates the device ID from the number of a replica. NVIDIA's device plugin uses the same mark, and
// other tools parse it.
const replicaMark = "::"

// withReplicas returns the devices of a resource with their replicas. If replicas and unshared devices exceed
// MaxDevices, the shared devices get a fault instead.
func withReplicas(assigned []Assignment) []Device {
	total := 0
	for _, a := range assigned {
		total += max(1, a.Rule.replicas())
	}
	devices := make([]Device, len(assigned))
	for i, a := range assigned {
		devices[i] = a.Device
		switch {
		case a.Rule.replicas() == 0:
		case total > MaxDevices:
			devices[i].Fault = cmp.Or(a.Device.Fault, configFault("reduce replicas in resources",
				"replicas and unshared devices add up to %d, more than the limit of %d devices per resource", total, MaxDevices))
		default:
			devices[i].Replicas = replicaIDs(a.Device.ID, a.Rule.Replicas)
		}
	}
	return devices
}

// replicas returns the number of replicas that the device plugin advertises of each device; 0 for none.
func (r Rule) replicas() int {
	if r.Share != "" {
		return 0
	}
	return r.Replicas
}

func replicaIDs(id string, count int) []string {
	ids := make([]string, count)
	for n := range ids {
		ids[n] = fmt.Sprintf("%s%s%d", id, replicaMark, n)
	}
	return ids
}

// ReplicaName returns a name of a replica that is unique among the resources of a node, for its CDI device. The same
// replica can be in two resources while the config renames one.
func ReplicaName(k Key) string {
	return fmt.Sprintf("%s-%08x", k.ID, crc32.ChecksumIEEE([]byte(k.Outlet)))
}

// DeviceOf returns the device ID without the replica number, if it has one.
func DeviceOf(id string) string {
	device, _ := replicaOf(id)
	return device
}

// replicaOf returns the device ID without the replica number, and whether it has one.
func replicaOf(id string) (device string, replica bool) {
	device, _, replica = strings.Cut(id, replicaMark)
	return device, replica
}
