package host_test

import (
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/gpucdi/gpucdi/internal/host"
)

func TestPodResources(t *testing.T) {
	const (
		k0s      = "/var/lib/k0s/kubelet"
		microk8s = "/var/snap/microk8s/common/var/lib/kubelet"
	)
	for _, tc := range []struct {
		name, kubelet string
		links         map[string]string
		want          string // kubelet directory, below the node's root
	}{
		{"kubeadm, k3s, rke2", "/var/lib/kubelet", nil, "/var/lib/kubelet"},
		{"k0s", k0s, nil, k0s},
		{"MicroK8s", microk8s, nil, microk8s},
		{"MicroK8s with a symlink", microk8s, map[string]string{"/var/lib/kubelet": microk8s}, microk8s},
		{"absolute symlink", k0s, map[string]string{"/var/lib/k0s": "/srv/k0s"}, "/srv/k0s/kubelet"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			node := t.TempDir()
			for link, target := range tc.links {
				for _, dir := range []string{filepath.Dir(link), target} {
					if err := os.MkdirAll(filepath.Join(node, dir), 0o755); err != nil {
						t.Fatal(err)
					}
				}
				if err := os.Symlink(target, filepath.Join(node, link)); err != nil {
					t.Fatal(err)
				}
			}
			want := filepath.Join(node, tc.want, "pod-resources/kubelet.sock")
			makeSocket(t, want)
			if got := host.NewRoot(node).PodResources("/nowhere"); got != want {
				t.Errorf("got %s, want %s", got, want)
			}
		})
	}

	t.Run("configured directory takes precedence", func(t *testing.T) {
		node, configured := t.TempDir(), t.TempDir()
		makeSocket(t, filepath.Join(node, k0s, "pod-resources/kubelet.sock"))
		want := filepath.Join(configured, "pod-resources/kubelet.sock")
		makeSocket(t, want)
		if got := host.NewRoot(node).PodResources(configured); got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	})

	t.Run("default without a socket", func(t *testing.T) {
		want := "/nowhere/pod-resources/kubelet.sock"
		if got := host.NewRoot(t.TempDir()).PodResources("/nowhere"); got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	})
}

func makeSocket(t *testing.T, socket string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(socket), 0o755); err != nil {
		t.Fatal(err)
	}
	// Listening would limit the length of the path.
	if err := unix.Mknod(socket, unix.S_IFSOCK|0o600, 0); err != nil {
		t.Fatal(err)
	}
}

func TestKubeletRoot(t *testing.T) {
	const (
		configured = "/var/lib/kubelet"
		k0s        = "/srv/k0s/kubelet"
	)
	node := t.TempDir()
	root := host.NewRoot(node)
	check := func(wantLocal, wantNode string) {
		t.Helper()
		if local, onNode := root.KubeletRoot(configured); local != wantLocal || onNode != wantNode {
			t.Errorf("got %s, %s; want %s, %s", local, onNode, wantLocal, wantNode)
		}
	}
	mkdir := func(dir string) {
		t.Helper()
		if err := os.MkdirAll(filepath.Join(node, dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	check(configured, configured)
	mkdir(configured + "/plugins_registry") // created by a hostPath volume
	mkdir(k0s + "/pods")
	if err := os.Symlink("/srv/k0s", filepath.Join(node, "var/lib/k0s")); err != nil {
		t.Fatal(err)
	}
	check(filepath.Join(node, k0s), k0s)
	mkdir(configured + "/pods")
	check(configured, configured)
}
