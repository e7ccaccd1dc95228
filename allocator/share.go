package allocator

import (
	"cmp"
	"fmt"
	"strings"
)

// replicaMark separates the device ID from the number of a replica. NVIDIA's device plugin uses the same, and other
// tools parse these IDs.
const replicaMark = "::"

// share gives each device of a resource this many replicas, 0 for none. If that exceeds MaxDevices, the devices get a
// fault instead.
func share(devices []Device, replicas int) {
	if replicas == 0 {
		return
	}
	if replicas > MaxDevices/max(1, len(devices)) {
		for i, d := range devices {
			devices[i].Fault = cmp.Or(d.Fault, configFault("reduce replicas in resources",
				"%d replicas of each of %d devices exceed the limit of %d devices per resource",
				replicas, len(devices), MaxDevices))
		}
		return
	}
	for i, d := range devices {
		devices[i].Replicas = make([]string, replicas)
		for n := range replicas {
			devices[i].Replicas[n] = fmt.Sprintf("%s%s%d", d.ID, replicaMark, n)
		}
	}
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
