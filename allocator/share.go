package allocator

import (
	"cmp"
	"fmt"
	"strings"
)

// replicaMark stands between a device's ID and a replica's number, as it does with
// NVIDIA's plugin: tools take the IDs apart.
const replicaMark = "::"

// share gives each of a resource's devices so many replicas, 0 for none. More than
// the kubelet can be told of are none at all.
func share(devices []Device, replicas int) {
	if replicas == 0 {
		return
	}
	if replicas > MaxDevices/max(1, len(devices)) {
		for i, d := range devices {
			devices[i].Fault = cmp.Or(d.Fault, configFault("lower them in resources",
				"%d replicas of each of %d devices are more than the %d that a resource can have", replicas, len(devices), MaxDevices))
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

// DeviceOf returns the ID of the device that an ID of the kubelet's is, or is a replica of.
func DeviceOf(id string) string {
	device, _ := replicaOf(id)
	return device
}

// replicaOf returns the ID of the device that an ID of the kubelet's is, or is a
// replica of.
func replicaOf(id string) (device string, replica bool) {
	device, _, replica = strings.Cut(id, replicaMark)
	return device, replica
}
