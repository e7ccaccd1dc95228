package container_test

import (
	"os"
	"path"
	"strings"
	"testing"

	"github.com/gpucdi/gpucdi/test/container"
	"github.com/gpucdi/gpucdi/test/docs"
	"github.com/gpucdi/gpucdi/test/node/images"
)

// Debian 13 with its docker, containerd and runc: Debian 12's docker knows no CDI. What stands
// between docker and a machine's network is left out.
func TestDockerTakesTheGeneratedDevices(t *testing.T) {
	root := container.ImageDir(images.Docker)
	m := start(t, container.Config{Images: []images.Root{images.Docker}, DriverRoot: root})
	// In mounts of its own, with a root that is one, as docker and runc expect of a host.
	host := []string{"unshare", "--mount", "--propagation", "slave", "sh", "-ec", `mount --rbind "$0" "$0"; exec chroot "$0" "$@"`, root}
	docker := []string{"chroot", root, "docker"}
	const install = `cp /usr/local/bin/gpucdi* "$1/usr/local/bin"; chroot "$1" gpucdi generate --output ` + container.SpecFile
	if _, err := m.Output(t.Context(), "sh", "-ec", install, "sh", root); err != nil {
		t.Fatal(err)
	}
	allowCDI(t, m.Path(path.Join(root, "etc/docker")))
	startDaemon(t, m, append(docker, "info"), append(host, "dockerd", "--bridge=none", "--iptables=false", "--ip6tables=false")...)
	loadDebian(t, m, docker...)
	takesDevices(t, m, docker...)
	t.Run("as the document says", func(t *testing.T) {
		blocks, err := docs.Blocks(t.Context(), "docs/without-kubernetes.md", "Without Kubernetes", "sh")
		if err != nil {
			t.Fatal(err)
		}
		command := strings.Replace(blocks[len(blocks)-1], "podman", "docker", 1)
		out, err := m.Output(t.Context(), "chroot", root, "sh", "-ec", command)
		if err != nil || !strings.HasPrefix(out, "GPU 0: ") || strings.Count(out, "\n") != 1 {
			t.Errorf("%s prints %q, %v", command, out, err)
		}
	})
}

// allowCDI configures docker as the document says.
func allowCDI(t *testing.T, dir string) {
	t.Helper()
	blocks, err := docs.Blocks(t.Context(), "docs/without-kubernetes.md", "Without Kubernetes", "json")
	if err != nil || len(blocks) != 1 {
		t.Fatalf("%d blocks, %v", len(blocks), err)
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path.Join(dir, "daemon.json"), []byte(blocks[0]), 0o600); err != nil {
		t.Fatal(err)
	}
}
