package host_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/gpucdi/gpucdi/internal/host"
)

func TestPodsCgroup(t *testing.T) {
	for name, tc := range map[string]struct {
		files []string // below the cgroup directory; directories end in a slash
		v2    bool
		pods  string
	}{
		"v1":         {files: []string{"memory/kubepods/"}, pods: "/sys/fs/cgroup/memory/kubepods"},
		"hybrid":     {files: []string{"unified/cgroup.controllers", "memory/"}},
		"no kubelet": {files: []string{"cgroup.controllers", "system.slice/"}, v2: true},
		"systemd":    {files: []string{"cgroup.controllers", "kubepods.slice/"}, v2: true, pods: "/sys/fs/cgroup/kubepods.slice"},
		"cgroupfs":   {files: []string{"cgroup.controllers", "kubepods/"}, v2: true, pods: "/sys/fs/cgroup/kubepods"},
		"cgroupRoot": {files: []string{"cgroup.controllers", "a/", "kubelet/kubepods/"}, v2: true, pods: "/sys/fs/cgroup/kubelet/kubepods"},
		"cgroupRoot, systemd": {
			files: []string{"cgroup.controllers", "kubelet.slice/kubelet-kubepods.slice/"}, v2: true,
			pods: "/sys/fs/cgroup/kubelet.slice/kubelet-kubepods.slice",
		},
		"not a directory": {files: []string{"cgroup.controllers", "kubepods"}, v2: true},
		"nothing":         {},
	} {
		t.Run(name, func(t *testing.T) {
			root := t.TempDir()
			for _, file := range tc.files {
				path := filepath.Join(root, host.CgroupDir, file)
				dir := filepath.Dir(path)
				if file[len(file)-1] == '/' {
					dir = path
				}
				if err := os.MkdirAll(dir, 0o755); err != nil {
					t.Fatal(err)
				}
				if dir != path {
					if err := os.WriteFile(path, nil, 0o600); err != nil {
						t.Fatal(err)
					}
				}
			}
			node := host.NewRoot(root)
			if v2, pods := node.HasCgroup2(), node.PodsCgroup(); v2 != tc.v2 || pods != tc.pods {
				t.Errorf("got cgroup v2 %t and pods in %q, want %t and %q", v2, pods, tc.v2, tc.pods)
			}
		})
	}
}

func TestHasCgroupController(t *testing.T) {
	root := t.TempDir()
	node := host.NewRoot(root)
	if node.HasCgroupController("dmem") {
		t.Error("controller dmem without a cgroup hierarchy")
	}
	dir := filepath.Join(root, host.CgroupDir)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	for controllers, want := range map[string]bool{"": false, "cpu misc\n": false, "cpuset cpu io memory hugetlb pids rdma misc dmem\n": true} {
		if err := os.WriteFile(filepath.Join(dir, "cgroup.controllers"), []byte(controllers), 0o600); err != nil {
			t.Fatal(err)
		}
		if got := node.HasCgroupController("dmem"); got != want {
			t.Errorf("controller dmem in %q: %t", controllers, got)
		}
	}
}

func TestPodCgroup(t *testing.T) {
	const uid = "0ee3a2f0-1c2b-4e2f-9d3a-5b6c7d8e9f00"
	for name, dir := range map[string]string{
		"cgroupfs":             "kubepods/pod" + uid,
		"cgroupfs, burstable":  "kubepods/burstable/pod" + uid,
		"cgroupfs, besteffort": "kubelet/kubepods/besteffort/pod" + uid,
		"systemd":              "kubepods.slice/kubepods-pod0ee3a2f0_1c2b_4e2f_9d3a_5b6c7d8e9f00.slice",
		"systemd, besteffort":  "kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod0ee3a2f0_1c2b_4e2f_9d3a_5b6c7d8e9f00.slice",
		"systemd, cgroupRoot":  "a.slice/a-kubepods.slice/a-kubepods-burstable.slice/a-kubepods-burstable-pod0ee3a2f0_1c2b_4e2f_9d3a_5b6c7d8e9f00.slice",
	} {
		t.Run(name, func(t *testing.T) {
			root := t.TempDir()
			if err := os.MkdirAll(filepath.Join(root, host.CgroupDir, dir), 0o755); err != nil {
				t.Fatal(err)
			}
			node := host.NewRoot(root)
			if got, err := node.PodCgroup(uid); err != nil || got != filepath.Join(host.CgroupDir, dir) {
				t.Errorf("got %s, %v; want %s", got, err, dir)
			}
			for _, other := range []string{"0ee3a2f0", "", "..", "../" + uid, "x/y"} {
				if got, err := node.PodCgroup(other); err == nil {
					t.Errorf("pod %q has the cgroup %s, want an error", other, got)
				}
			}
		})
	}
	if got, err := host.NewRoot(t.TempDir()).PodCgroup(uid); err == nil {
		t.Errorf("without a kubelet: %s, want an error", got)
	}
}
