package labels

import "strings"

// versionPrefixes are the prefixes of the names of labels that contain versions, or what a version supports.
var versionPrefixes = []string{prefix + "cuda.", prefix + "vgpu.host-driver-", MemoryLimits}

// Routine reports whether a change of the labels of a node may be applied later: only versions of the driver differ, as
// after a driver upgrade, or all labels are removed, as during one. The other labels describe GPUs, and pods select
// nodes by them.
func Routine(before, after map[string]string) bool {
	switch {
	case len(after) == 0:
		return true
	case len(before) == 0:
		return false
	}
	return sameGPUs(before, after) && sameGPUs(after, before)
}

// sameGPUs reports whether b has all labels of a that are not versions.
func sameGPUs(a, b map[string]string) bool {
	for name, value := range a {
		if other, ok := b[name]; (!ok || other != value) && !isVersion(name) {
			return false
		}
	}
	return true
}

func isVersion(name string) bool {
	for _, versionPrefix := range versionPrefixes {
		if strings.HasPrefix(name, versionPrefix) {
			return true
		}
	}
	return false
}
