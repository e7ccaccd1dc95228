package runtime

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"
)

// Problem describes in one line why the runtime cannot start pods with their GPUs if specs are written to cdiDir, and
// the remedy. It is empty if there is no problem.
func (i Info) Problem(cdiDir string) string {
	switch {
	case !i.CDI && i.Name == "containerd" && strings.HasPrefix(strings.TrimPrefix(i.Version, "v"), "1.6."):
		return fmt.Sprintf("containerd %s does not support CDI: pods start without their GPUs; "+
			"upgrade to containerd 1.7.2 or later", i.Version)
	case !i.CDI:
		d := distributionOf(i.Socket)
		return fmt.Sprintf("%s %s has CDI disabled: pods start without their GPUs; "+
			"set enable_cdi = true under [plugins.%q] in %s and restart %s",
			i.Name, i.Version, pluginSection(i.Version), d.config, d.service)
	case !slices.ContainsFunc(i.SpecDirs, func(dir string) bool { return sameDir(dir, cdiDir) }):
		return fmt.Sprintf("%s %s reads CDI specs from %s, not from %s: pods cannot start; set --cdi-dir to one of them",
			i.Name, i.Version, strings.Join(i.SpecDirs, " and "), cdiDir)
	}
	return ""
}

// pluginSection returns the table of the CRI plugin in containerd's configuration.
func pluginSection(version string) string {
	if major(version) >= 2 {
		return "io.containerd.cri.v1.runtime"
	}
	return "io.containerd.grpc.v1.cri"
}

// sameDir compares two paths on the node. /var/run is a symbolic link to /run on all current distributions.
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
