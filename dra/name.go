package dra

import (
	"regexp"
	"strings"
)

// Prefixes of the UUID of a GPU, which is its ID in the ledger and its CDI device name, and of its name in the
// ResourceSlices, which must be a DNS label.
const (
	idPrefix   = "GPU-"
	namePrefix = "gpu-"
)

// dnsLabel is the format of device names in ResourceSlices.
var dnsLabel = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$`)

// DeviceName returns the name in the ResourceSlices of the GPU with a UUID. It fails if the UUID cannot be derived from
// the name.
func DeviceName(uuid string) (name string, ok bool) {
	rest, ok := strings.CutPrefix(uuid, idPrefix)
	name = namePrefix + rest
	return name, ok && rest != "" && dnsLabel.MatchString(name)
}

// DeviceID returns the UUID of the GPU with a name in the ResourceSlices.
func DeviceID(name string) (uuid string, ok bool) {
	rest, ok := strings.CutPrefix(name, namePrefix)
	return idPrefix + rest, ok && rest != "" && dnsLabel.MatchString(name)
}
