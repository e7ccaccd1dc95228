package host

import (
	"path"
	"strings"
)

// CgroupDir is the mount point of the node's cgroup hierarchy.
const CgroupDir = "/sys/fs/cgroup"

// HasCgroup2 reports whether the node's cgroup hierarchy is that of cgroup v2, without hierarchies of v1.
func (r Root) HasCgroup2() bool {
	_, err := r.Stat(path.Join(CgroupDir, "cgroup.controllers"))
	return err == nil
}

// PodsCgroup returns the directory of the cgroup that contains those of pods, in CgroupDir or in the child that the
// kubelet's setting cgroupRoot names. It is empty if there is none: no kubelet has run since the node started, its
// setting cgroupsPerQOS is false, or cgroupRoot has more than one level.
func (r Root) PodsCgroup() string {
	if dir := r.podsCgroupIn(CgroupDir); dir != "" {
		return dir
	}
	entries, err := r.ReadDir(CgroupDir)
	if err != nil {
		return ""
	}
	for _, e := range entries {
		if !e.IsDir() {
			continue
		}
		if dir := r.podsCgroupIn(path.Join(CgroupDir, e.Name())); dir != "" {
			return dir
		}
	}
	return ""
}

func (r Root) podsCgroupIn(parent string) string {
	slice, _ := strings.CutSuffix(path.Base(parent), ".slice")
	// The cgroup drivers systemd and cgroupfs. With systemd, the name of a slice starts with that of its parent.
	for _, name := range []string{"kubepods.slice", "kubepods", slice + "-kubepods.slice"} {
		dir := path.Join(parent, name)
		if info, err := r.Stat(dir); err == nil && info.IsDir() {
			return dir
		}
	}
	return ""
}
