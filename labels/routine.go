package labels

import "strings"

// driverPrefixes are the prefixes of the labels that describe drivers: versions, and the support for memory limits.
var driverPrefixes = []string{prefix + "cuda.", prefix + "vgpu.host-driver-", MemoryLimits}

// Routine reports whether a change of a node's labels may be delayed: if only labels of drivers change, as after a
// driver upgrade, or if all labels are removed, as during one. The other labels describe GPUs, and pods select nodes by
// them.
func Routine(before, after map[string]string) bool {
	switch {
	case len(after) == 0:
		return true
	case len(before) == 0:
		return false
	}
	return sameGPUs(before, after) && sameGPUs(after, before)
}

// sameGPUs reports whether b has all labels of a that do not describe drivers, with the same values.
func sameGPUs(a, b map[string]string) bool {
	for name, value := range a {
		if other, ok := b[name]; (!ok || other != value) && !describesDriver(name) {
			return false
		}
	}
	return true
}

func describesDriver(name string) bool {
	for _, driverPrefix := range driverPrefixes {
		if strings.HasPrefix(name, driverPrefix) {
			return true
		}
	}
	return false
}
