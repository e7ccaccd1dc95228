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

// noNetwork are dockerd's flags that leave the host's network unchanged.
var noNetwork = []string{"--bridge=none", "--iptables=false", "--ip6tables=false"}

func TestDocker(t *testing.T) {
	t.Parallel()
	m, host := startDockerHost(t)
	docker := append(host, "docker")
	if _, err := m.Output(t.Context(), host[0], append(host[1:], "gpucdi", "generate", "--output", container.SpecFile)...); err != nil {
		t.Fatal(err)
	}
	enableCDI(t, m, "/etc/docker", "Enable CDI in Docker")
	startDaemon(t, m, append(docker, "info"), slices.Concat(host, []string{"dockerd"}, noNetwork)...)
	loadDebian(t, m, docker...)
	testDevices(t, m, docker...)
	t.Run("own TRITON_LIBCUDA_PATH", func(t *testing.T) {
		checkLibcudaPath(t, m, docker, "/usr/lib64", "--env", "TRITON_LIBCUDA_PATH=/other")
	})
	t.Run("documented commands", func(t *testing.T) {
		blocks, err := docs.Blocks(t.Context(), "docs/without-kubernetes.md", "Run a container", "sh")
		if err != nil {
			t.Fatal(err)
		}
		command := strings.Replace(blocks[0], "podman", "docker", 1)
		out, err := m.Output(t.Context(), host[0], append(host[1:], "sh", "-ec", command)...)
		if err != nil || !strings.HasPrefix(out, "GPU 0: ") || strings.Count(out, "\n") != 1 {
			t.Errorf("%s prints %q, %v", command, out, err)
		}
	})
}

// Debian's script starts a rootless docker. The CDI spec is in the user's home.
func TestRootlessDocker(t *testing.T) {
	t.Parallel()
	m, host := startDockerHost(t)
	mountProcAndSys(t, m, dockerRoot)
	makeTun(t, m)
	user := append(addUser(t, m, host...), "DOCKER_HOST=unix://"+runtimeDir+"/docker.sock")
	generate := append(user, "gpucdi", "generate", "--output", path.Join(home, ".config/cdi/nvidia.yaml"))
	if _, err := m.Output(t.Context(), generate[0], generate[1:]...); err != nil {
		t.Fatal(err)
	}
	enableCDI(t, m, path.Join(home, ".config/docker"), "Run rootless containers")
	docker := append(user, "docker")
	startDaemon(t, m, append(docker, "info"), slices.Concat(user, []string{"/usr/share/docker.io/contrib/dockerd-rootless.sh"}, noNetwork)...)
	loadDebian(t, m, docker...)
	testDevices(t, m, docker...)
}

var dockerRoot = container.ImageDir(images.Docker)

// startDockerHost starts a machine with a second host in it: Debian 13 with docker, the driver and gpucdi. It returns
// the prefix of that host's commands. Debian 12's docker does not support CDI.
func startDockerHost(t *testing.T) (m *container.Machine, host []string) {
	t.Helper()
	m = start(t, container.Config{Images: []images.Root{images.Docker}, DriverRoot: dockerRoot})
	if _, err := m.Output(t.Context(), "sh", "-ec", `cp /usr/local/bin/gpucdi* "$0/usr/local/bin"`, dockerRoot); err != nil {
		t.Fatal(err)
	}
	// chroot is not sufficient: docker changes the root mount, and processes in a chroot cannot create user namespaces.
	const enter = `mount --rbind "$0" "$0"; cd "$0"; pivot_root . .; umount -l .; exec "$@"`
	return m, []string{"unshare", "--mount", "sh", "-ec", enter, dockerRoot}
}

// enableCDI configures docker as a section of docs/without-kubernetes.md describes.
func enableCDI(t *testing.T, m *container.Machine, dir, section string) {
	t.Helper()
	blocks, err := docs.Blocks(t.Context(), "docs/without-kubernetes.md", section, "json")
	if err != nil || len(blocks) != 1 {
		t.Fatalf("%s: %d blocks, %v", section, len(blocks), err)
	}
	dir = m.Path(path.Join(dockerRoot, dir))
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	text := strings.ReplaceAll(blocks[0], "/home/someone", home)
	if err := os.WriteFile(path.Join(dir, "daemon.json"), []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}
