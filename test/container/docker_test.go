package container_test

import (
	"os"
	"path"
	"slices"
	"strings"
	"testing"

	"github.com/gpucdi/gpucdi/test/container"
	"github.com/gpucdi/gpucdi/test/docs"
	"github.com/gpucdi/gpucdi/test/node/images"
)

// noNetwork are dockerd's flags for a host whose network it is to leave alone.
var noNetwork = []string{"--bridge=none", "--iptables=false", "--ip6tables=false"}

func TestDockerTakesTheGeneratedDevices(t *testing.T) {
	m, host := startDockerHost(t)
	docker := append(host, "docker")
	if _, err := m.Output(t.Context(), host[0], append(host[1:], "gpucdi", "generate", "--output", container.SpecFile)...); err != nil {
		t.Fatal(err)
	}
	allowCDI(t, m, "/etc/docker", 0)
	startDaemon(t, m, append(docker, "info"), slices.Concat(host, []string{"dockerd"}, noNetwork)...)
	loadDebian(t, m, docker...)
	takesDevices(t, m, docker...)
	t.Run("a user's own variable", func(t *testing.T) {
		wantLibcudaPath(t, m, docker, "/usr/lib64", "--env", "TRITON_LIBCUDA_PATH=/other")
	})
	t.Run("as the document says", func(t *testing.T) {
		blocks, err := docs.Blocks(t.Context(), "docs/without-kubernetes.md", "Without Kubernetes", "sh")
		if err != nil {
			t.Fatal(err)
		}
		command := strings.Replace(blocks[len(blocks)-1], "podman", "docker", 1)
		out, err := m.Output(t.Context(), host[0], append(host[1:], "sh", "-ec", command)...)
		if err != nil || !strings.HasPrefix(out, "GPU 0: ") || strings.Count(out, "\n") != 1 {
			t.Errorf("%s prints %q, %v", command, out, err)
		}
	})
}

// A user's docker, as Debian's script starts it, and a spec of the user's.
func TestRootlessDockerTakesTheGeneratedDevices(t *testing.T) {
	m, host := startDockerHost(t)
	showWholeKernel(t, m, dockerRoot)
	makeTun(t, m)
	user := append(addUser(t, m, host...), "DOCKER_HOST=unix://"+runtimeDir+"/docker.sock")
	generate := append(user, "gpucdi", "generate", "--output", path.Join(home, ".config/cdi/nvidia.yaml"))
	if _, err := m.Output(t.Context(), generate[0], generate[1:]...); err != nil {
		t.Fatal(err)
	}
	allowCDI(t, m, path.Join(home, ".config/docker"), 1)
	docker := append(user, "docker")
	startDaemon(t, m, append(docker, "info"), slices.Concat(user, []string{"/usr/share/docker.io/contrib/dockerd-rootless.sh"}, noNetwork)...)
	loadDebian(t, m, docker...)
	takesDevices(t, m, docker...)
}

var dockerRoot = container.ImageDir(images.Docker)

// startDockerHost starts a machine in which Debian 13 with its docker is installed, the driver and
// gpucdi in it, and returns with what its commands begin. Debian 12's docker knows no CDI.
func startDockerHost(t *testing.T) (m *container.Machine, host []string) {
	t.Helper()
	m = start(t, container.Config{Images: []images.Root{images.Docker}, DriverRoot: dockerRoot})
	if _, err := m.Output(t.Context(), "sh", "-ec", `cp /usr/local/bin/gpucdi* "$0/usr/local/bin"`, dockerRoot); err != nil {
		t.Fatal(err)
	}
	// Its root, unlike one of chroot, is a mount, which docker changes, and may have user namespaces.
	const enter = `mount --rbind "$0" "$0"; cd "$0"; pivot_root . .; umount -l .; exec "$@"`
	return m, []string{"unshare", "--mount", "sh", "-ec", enter, dockerRoot}
}

// allowCDI configures docker with a block of the document.
func allowCDI(t *testing.T, m *container.Machine, dir string, block int) {
	t.Helper()
	blocks, err := docs.Blocks(t.Context(), "docs/without-kubernetes.md", "Without Kubernetes", "json")
	if err != nil || len(blocks) != 2 {
		t.Fatalf("%d blocks, %v", len(blocks), err)
	}
	dir = m.Path(path.Join(dockerRoot, dir))
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	text := strings.ReplaceAll(blocks[block], "/home/someone", home)
	if err := os.WriteFile(path.Join(dir, "daemon.json"), []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}
