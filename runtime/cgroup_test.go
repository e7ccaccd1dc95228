package runtime_test

import (
	"strings"
	"testing"

	"github.com/gpucdi/gpucdi/runtime"
)

func TestCgroups(t *testing.T) {
	ours, other := strings.Repeat("a1", 32), strings.Repeat("b2", 32)
	cgroups := runtime.NewCgroups([]runtime.Container{{ID: ours, Name: "ours"}, {ID: other, Name: "other"}, {Name: "without an ID"}})
	const pod = "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod1b2c.slice/"
	for name, tc := range map[string]struct{ path, want string }{
		"containerd, systemd driver":  {pod + "cri-containerd-" + ours + ".scope", "ours"},
		"CRI-O, systemd driver":       {pod + "crio-" + ours + ".scope", "ours"},
		"cgroupfs driver":             {"/kubepods/burstable/pod1b2c/" + ours, "ours"},
		"cgroup of the container":     {pod + "cri-containerd-" + ours + ".scope/init.slice", "ours"},
		"named like another":          {pod + "cri-containerd-" + ours + ".scope/" + other, "ours"},
		"node in a container":         {"/docker/" + strings.Repeat("c3", 32) + "/kubelet" + pod + "cri-containerd-" + ours + ".scope", "ours"},
		"outside of the cgroup root":  {"/../../.." + pod + "cri-containerd-" + ours + ".scope", "ours"},
		"another container's process": {pod + "cri-containerd-" + other + ".scope", "other"},
		"unknown container":           {pod + "cri-containerd-" + strings.Repeat("d4", 32) + ".scope", ""},
		"part of an ID":               {pod + "cri-containerd-" + ours[1:] + ".scope", ""},
		"no container":                {"/system.slice/sshd.service", ""},
		"root":                        {"/", ""},
		"empty names":                 {"/-.scope//", ""},
	} {
		c, found := cgroups.Container(tc.path)
		if c.Name != tc.want || found != (tc.want != "") {
			t.Errorf("%s: got %q, want %q", name, c.Name, tc.want)
		}
	}
}
