package runtime

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"
)

// Problem says in one line why this runtime would start pods without their
// GPUs when specs are written to cdiDir, and how to mend it. It is empty when
// nothing is wrong.
func (i Info) Problem(cdiDir string) string {
	switch {
	case !i.CDI && i.Name == "containerd" && strings.HasPrefix(strings.TrimPrefix(i.Version, "v"), "1.6."):
		return fmt.Sprintf("containerd %s knows no CDI: pods start without their GPUs; upgrade to containerd 1.7.2 or newer", i.Version)
	case !i.CDI:
		at := placeOf(i.Socket)
		return fmt.Sprintf("%s %s has CDI off: pods start without their GPUs; set enable_cdi = true under [plugins.%q] in %s and restart %s",
			i.Name, i.Version, pluginSection(i.Version), at.config, at.service)
	case !slices.ContainsFunc(i.SpecDirs, func(dir string) bool { return sameDir(dir, cdiDir) }):
		return fmt.Sprintf("%s %s reads CDI specs from %s, not from %s: pods cannot start; set --cdi-dir to one of them",
			i.Name, i.Version, strings.Join(i.SpecDirs, " and "), cdiDir)
	}
	return ""
}

// pluginSection is where containerd keeps its CRI configuration.
func pluginSection(version string) string {
	if major(version) >= 2 {
		return "io.containerd.cri.v1.runtime"
	}
	return "io.containerd.grpc.v1.cri"
}

// sameDir compares two of the node's paths. /var/run is a link to /run on
// every distribution of today.
func sameDir(a, b string) bool {
	norm := func(dir string) string {
		dir = filepath.Clean(dir)
		if rest, ok := strings.CutPrefix(dir, "/var/run/"); ok {
			return "/run/" + rest
		}
		return dir
	}
	return norm(a) == norm(b)
}
