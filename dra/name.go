package dra

import (
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"
)

// prefixes are the prefixes of UUIDs and of the corresponding device names in the ResourceSlices. The UUID of a GPU or
// MIG device is its ID in the ledger and its CDI device name. A name in the ResourceSlices must be a DNS label.
var prefixes = []struct{ id, name string }{
	{"GPU-", "gpu-"},
	{migPrefix, "mig-"},
}

const migPrefix = "MIG-"

// isMIG reports whether a UUID is that of a MIG device.
func isMIG(uuid string) bool { return strings.HasPrefix(uuid, migPrefix) }

// DeviceName returns the name in the ResourceSlices of the GPU or MIG device with a UUID. ok is false if the UUID has
// another prefix, or the result would not be a DNS label.
func DeviceName(uuid string) (name string, ok bool) {
	for _, p := range prefixes {
		if rest, found := strings.CutPrefix(uuid, p.id); found {
			name = p.name + rest
			return name, rest != "" && len(validation.IsDNS1123Label(name)) == 0
		}
	}
	return "", false
}

// DeviceID returns the UUID of the GPU or MIG device with a name in the ResourceSlices. It reverses DeviceName.
func DeviceID(name string) (uuid string, ok bool) {
	for _, p := range prefixes {
		if rest, found := strings.CutPrefix(name, p.name); found {
			return p.id + rest, rest != "" && len(validation.IsDNS1123Label(name)) == 0
		}
	}
	return "", false
}
