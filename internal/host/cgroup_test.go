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
		"file, not a group": {files: []string{"cgroup.controllers", "kubepods"}, v2: true},
		"nothing":           {},
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
