package runtime

import "strings"

// Cgroups maps container IDs to containers. The name of a container's cgroup contains its ID.
type Cgroups map[string]Container

// NewCgroups returns the cgroups of containers.
func NewCgroups(running []Container) Cgroups {
	c := Cgroups{}
	for _, container := range running {
		c[container.ID] = container
	}
	return c
}

// Container returns the container whose processes are in the cgroup at path. A container can create cgroups below its
// own and name them like the cgroups of other containers, so the outermost match counts.
func (c Cgroups) Container(path string) (Container, bool) {
	for name := range strings.SplitSeq(path, "/") {
		// "<ID>" with the cgroupfs driver, "cri-containerd-<ID>.scope" or "crio-<ID>.scope" with the systemd driver.
		name = strings.TrimSuffix(name, ".scope")
		if container, found := c[name[strings.LastIndexByte(name, '-')+1:]]; found && container.ID != "" {
			return container, true
		}
	}
	return Container{}, false
}
