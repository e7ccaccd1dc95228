package container_test

import (
	"os"
	"path"
	"slices"
	"strings"
	"testing"

	"github.com/gpucdi/gpucdi/test/container"
	"github.com/gpucdi/gpucdi/test/docs"
	"github.com/gpucdi/gpucdi/test/node/tools"
)

// Debian's podman and crun run with their default configuration.
func TestPodman(t *testing.T) {
	t.Parallel()
	if err := tools.InstallPackages(t.Context(), "podman"); err != nil {
		t.Fatal(err)
	}
	m := start(t, container.Config{})
	generate(t, m)
	loadDebian(t, m, "podman")
	testDevices(t, m, "podman")
	t.Run("own TRITON_LIBCUDA_PATH", func(t *testing.T) {
		checkLibcudaPath(t, m, []string{"podman"}, "/usr/lib64", "--env", "TRITON_LIBCUDA_PATH=/other")
	})
	t.Run("documented commands", func(t *testing.T) {
		for i, section := range []string{"Check the spec", "Run a container"} {
			blocks, err := docs.Blocks(t.Context(), "docs/without-kubernetes.md", section, "sh")
			if err != nil || len(blocks) != 1 {
				t.Fatalf("%s: %d blocks, %v", section, len(blocks), err)
			}
			prefix, lines := []string{"", "GPU 0: "}[i], []int{0, 1}[i]
			out, err := m.Output(t.Context(), "sh", "-ec", blocks[0])
			if err != nil || !strings.HasPrefix(out, prefix) || strings.Count(out, "\n") != lines {
				t.Errorf("%s prints %q, %v", blocks[0], out, err)
			}
		}
	})
}

// A rootless user can generate the same CDI spec as root, and run containers with root's.
func TestRootlessPodman(t *testing.T) {
	t.Parallel()
	if err := tools.InstallPackages(t.Context(), "podman", "uidmap"); err != nil {
		t.Fatal(err)
	}
	m := start(t, container.Config{})
	mountProcAndSys(t, m, "/")
	generate(t, m)
	user := addUser(t, m)
	podman := append(user, "podman", "--storage-driver", "overlay")
	t.Run("generate", func(t *testing.T) {
		file := path.Join(home, ".config/cdi/nvidia.yaml")
		if _, err := m.Output(t.Context(), user[0], append(user[1:], "gpucdi", "generate", "--output", file)...); err != nil {
			t.Fatal(err)
		}
		own, err := os.ReadFile(m.Path(file))
		if err != nil {
			t.Fatal(err)
		}
		if rootSpec, err := os.ReadFile(m.Path(container.SpecFile)); err != nil || string(own) != string(rootSpec) {
			t.Errorf("the user's spec is\n%s\nand root's\n%s, %v", own, rootSpec, err)
		}
	})
	loadDebian(t, m, podman...)
	testDevices(t, m, podman...)
	t.Run("with the hook", func(t *testing.T) {
		generateWithHook(t, m)
		out, err := run(t, m, podman, []string{"--device", "nvidia.com/gpu=0"}, "ldconfig", "-p")
		if err != nil || !strings.Contains(out, "libcuda.so.1") {
			t.Errorf("ldconfig -p prints %s, %v", out, err)
		}
	})
	t.Run("missing device node", func(t *testing.T) {
		const node = "/dev/nvidia-uvm-tools"
		if err := os.Remove(m.Path(node)); err != nil {
			t.Fatal(err)
		}
		if _, err := run(t, m, podman, []string{"--device", "nvidia.com/gpu=0"}, "true"); err == nil || !strings.Contains(err.Error(), node) {
			t.Errorf("without %s: %v", node, err)
		}
	})
}

// HOME and XDG_RUNTIME_DIR of the rootless user.
const (
	home       = "/var/lib/someone"
	runtimeDir = "/run/someone"
)

// addUser creates the user of rootless tests in the box, or in the second host of startDockerHost if host, the prefix
// of that host's commands, is given. It returns the prefix of the user's commands.
func addUser(t *testing.T, m *container.Machine, host ...string) []string {
	t.Helper()
	// podman unpacks images in /var/tmp.
	const commands = `useradd --create-home --home-dir "$1" someone; install --directory --mode 700 --owner someone "$2"; chmod 1777 /var/tmp`
	add := append(slices.Clone(host), "sh", "-ec", commands, "sh", home, runtimeDir)
	if _, err := m.Output(t.Context(), add[0], add[1:]...); err != nil {
		t.Fatal(err)
	}
	return append(slices.Clone(host), "runuser", "--user", "someone", "--", "env", "--chdir="+home, "HOME="+home, "XDG_RUNTIME_DIR="+runtimeDir)
}
