package host

import (
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"
)

// CgroupDir is the mount point of the node's cgroup hierarchy.
const CgroupDir = "/sys/fs/cgroup"

// HasCgroup2 reports whether the node has only the unified hierarchy of cgroup v2, without hierarchies of v1.
func (r Root) HasCgroup2() bool {
	_, err := r.Stat(path.Join(CgroupDir, "cgroup.controllers"))
	return err == nil
}

// HasCgroupController reports whether the kernel has a controller of cgroup v2, such as "dmem".
func (r Root) HasCgroupController(name string) bool {
	controllers, err := r.ReadFile(path.Join(CgroupDir, "cgroup.controllers"))
	return err == nil && slices.Contains(strings.Fields(string(controllers)), name)
}

// PodsCgroup returns the directory of the parent cgroup of all pods. It is in CgroupDir, or in a child of it: the
// kubelet's setting cgroupRoot, or a controller of cgroup v1. It is empty if there is none: no kubelet has run since
// the node started, its setting cgroupsPerQOS is false, or cgroupRoot has more than one level.
func (r Root) PodsCgroup() string {
	for _, dir := range r.podsCgroups() {
		return dir
	}
	return ""
}

// podsCgroups returns all candidates for PodsCgroup. There is more than one if the kubelet's cgroup driver or
// cgroupRoot has changed since the node started.
func (r Root) podsCgroups() []string {
	dirs := r.podsCgroupsIn(CgroupDir)
	entries, err := r.ReadDir(CgroupDir)
	if err != nil {
		return dirs
	}
	for _, e := range entries {
		if e.IsDir() {
			dirs = append(dirs, r.podsCgroupsIn(path.Join(CgroupDir, e.Name()))...)
		}
	}
	return dirs
}

func (r Root) podsCgroupsIn(parent string) (dirs []string) {
	slice, _ := strings.CutSuffix(path.Base(parent), ".slice")
	// The names with the cgroup drivers systemd and cgroupfs, and the name in a parent slice: systemd requires the
	// names of slices to start with the name of their parent.
	for _, name := range []string{"kubepods.slice", "kubepods", slice + "-kubepods.slice"} {
		dir := path.Join(parent, name)
		if info, err := r.Stat(dir); err == nil && info.IsDir() {
			dirs = append(dirs, dir)
		}
	}
	return dirs
}

// PodCgroup returns the directory of the cgroup of a pod. The kubelet creates it before the pod's first container. The
// error wraps fs.ErrNotExist if pods have cgroups but this one does not, for example because it has ended.
func (r Root) PodCgroup(uid string) (string, error) {
	if uid == "" || path.Base(uid) != uid {
		return "", fmt.Errorf("finding the cgroup of pod %q: invalid UID", uid)
	}
	all := r.podsCgroups()
	for _, pods := range all {
		slice, systemd := strings.CutSuffix(path.Base(pods), ".slice")
		for _, class := range []string{"", "burstable", "besteffort"} { // the QoS class Guaranteed has no cgroup
			dir := path.Join(pods, class, "pod"+uid)
			if systemd {
				dir = systemdPod(pods, slice, class, uid)
			}
			if info, err := r.Stat(dir); err == nil && info.IsDir() {
				return dir, nil
			}
		}
	}
	if len(all) == 0 {
		return "", fmt.Errorf("finding the cgroup of pod %s: pods have no cgroups below %s; set cgroupsPerQOS: true in the kubelet's config, and cgroupRoot to one level at most", uid, CgroupDir)
	}
	return "", fmt.Errorf("finding the cgroup of pod %s in %s: %w", uid, strings.Join(all, ", "), fs.ErrNotExist)
}

// systemdPod returns the directory of a pod's slice. In the name of a slice, "-" separates the names of its parents, so
// the kubelet replaces it in the UID.
func systemdPod(pods, slice, class, uid string) string {
	if class != "" {
		slice += "-" + class
		pods = path.Join(pods, slice+".slice")
	}
	return path.Join(pods, slice+"-pod"+strings.ReplaceAll(uid, "-", "_")+".slice")
}
