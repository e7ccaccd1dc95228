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

// Debian's podman with Debian's crun, as they are installed.
func TestPodmanTakesTheGeneratedDevices(t *testing.T) {
	if err := tools.InstallPackages(t.Context(), "podman"); err != nil {
		t.Fatal(err)
	}
	m := start(t, container.Config{})
	generate(t, m)
	loadDebian(t, m, "podman")
	takesDevices(t, m, "podman")
	t.Run("a user's own variable", func(t *testing.T) {
		wantLibcudaPath(t, m, []string{"podman"}, "/usr/lib64", "--env", "TRITON_LIBCUDA_PATH=/other")
	})
	t.Run("as the document says", func(t *testing.T) {
		blocks, err := docs.Blocks(t.Context(), "docs/without-kubernetes.md", "Without Kubernetes", "sh")
		if err != nil || len(blocks) != 2 {
			t.Fatalf("%d blocks, %v", len(blocks), err)
		}
		for i, want := range []string{"", "GPU 0: "} {
			out, err := m.Output(t.Context(), "sh", "-ec", blocks[i])
			if err != nil || !strings.HasPrefix(out, want) || strings.Count(out, "\n") != i {
				t.Errorf("%s prints %q, %v", blocks[i], out, err)
			}
		}
	})
}

// An ordinary user needs no root, neither to make a spec nor to use it.
func TestRootlessPodmanTakesTheGeneratedDevices(t *testing.T) {
	if err := tools.InstallPackages(t.Context(), "podman", "uidmap"); err != nil {
		t.Fatal(err)
	}
	m := start(t, container.Config{})
	showWholeKernel(t, m, "/")
	generate(t, m)
	user := addUser(t, m)
	podman := append(user, "podman", "--storage-driver", "overlay")
	t.Run("who may generate, too", func(t *testing.T) {
		file := path.Join(home, ".config/cdi/nvidia.yaml")
		if _, err := m.Output(t.Context(), user[0], append(user[1:], "gpucdi", "generate", "--output", file)...); err != nil {
			t.Fatal(err)
		}
		own, err := os.ReadFile(m.Path(file))
		if err != nil {
			t.Fatal(err)
		}
		if ofRoot, err := os.ReadFile(m.Path(container.SpecFile)); err != nil || string(own) != string(ofRoot) {
			t.Errorf("the user's spec is\n%s\nand root's\n%s, %v", own, ofRoot, err)
		}
	})
	loadDebian(t, m, podman...)
	takesDevices(t, m, podman...)
	t.Run("with the hook", func(t *testing.T) {
		generateWithHook(t, m)
		out, err := run(t, m, podman, []string{"--device", "nvidia.com/gpu=0"}, "ldconfig", "-p")
		if err != nil || !strings.Contains(out, "libcuda.so.1") {
			t.Errorf("ldconfig -p prints %s, %v", out, err)
		}
	})
	t.Run("without a node", func(t *testing.T) {
		const node = "/dev/nvidia-uvm-tools"
		if err := os.Remove(m.Path(node)); err != nil {
			t.Fatal(err)
		}
		if _, err := run(t, m, podman, []string{"--device", "nvidia.com/gpu=0"}, "true"); err == nil || !strings.Contains(err.Error(), node) {
			t.Errorf("without %s: %v", node, err)
		}
	})
}

// Where an ordinary user's files are, and what lives as long as that user's programs.
const (
	home       = "/var/lib/someone"
	runtimeDir = "/run/someone"
)

// addUser makes an ordinary user, of the box or of what commands that begin with host see, and
// returns with what that user's commands begin.
func addUser(t *testing.T, m *container.Machine, host ...string) []string {
	t.Helper()
	// Everybody's /var/tmp is where podman unpacks images.
	const commands = `useradd --create-home --home-dir "$1" someone; install --directory --mode 700 --owner someone "$2"; chmod 1777 /var/tmp`
	add := append(slices.Clone(host), "sh", "-ec", commands, "sh", home, runtimeDir)
	if _, err := m.Output(t.Context(), add[0], add[1:]...); err != nil {
		t.Fatal(err)
	}
	return append(slices.Clone(host), "runuser", "--user", "someone", "--", "env", "--chdir="+home, "HOME="+home, "XDG_RUNTIME_DIR="+runtimeDir)
}
