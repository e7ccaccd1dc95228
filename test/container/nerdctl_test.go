package container_test

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/gpucdi/gpucdi/test/container"
	"github.com/gpucdi/gpucdi/test/docs"
	"github.com/gpucdi/gpucdi/test/node/images"
	"github.com/gpucdi/gpucdi/test/node/tools"
	"github.com/gpucdi/gpucdi/test/simdriver"
)

// containerd and nerdctl run without configuration.
func TestNerdctl(t *testing.T) {
	t.Parallel()
	m := start(t, container.Config{Tools: []tools.Tool{tools.Containerd, tools.Nerdctl}})
	generate(t, m)
	startContainerd(t, m, "containerd")
	loadDebian(t, m, "nerdctl")
	testDevices(t, m, "nerdctl")
	t.Run("own TRITON_LIBCUDA_PATH", func(t *testing.T) {
		checkLibcudaPath(t, m, []string{"nerdctl"}, "/other", "--env", "TRITON_LIBCUDA_PATH=/other")
	})
	gpus := m.Driver.State().GPUs
	t.Run("commands in README", func(t *testing.T) {
		blocks, err := docs.Blocks(t.Context(), "README.md", "Without Kubernetes", "sh")
		if err != nil {
			t.Fatal(err)
		}
		for _, block := range blocks[1:] { // the first builds the programs, as package product does
			out, err := m.Output(t.Context(), "sh", "-ec", block)
			if err != nil {
				t.Fatal(err)
			}
			_, inside, _ := strings.Cut(out, "(UUID: ")
			if !strings.HasPrefix(inside, gpus[0].UUID) || strings.Contains(inside, "UUID: ") {
				t.Errorf("README's commands print\n%s\nwant only GPU 0 in the container", out)
			}
		}
	})
}

// nerdctl's script starts a rootless containerd. The CDI spec is in the user's home.
func TestRootlessNerdctl(t *testing.T) {
	t.Parallel()
	if err := tools.InstallPackages(t.Context(), "rootlesskit", "slirp4netns", "uidmap"); err != nil {
		t.Fatal(err)
	}
	m := start(t, container.Config{Tools: []tools.Tool{tools.Containerd, tools.Nerdctl}})
	mountProcAndSys(t, m, "/")
	const script = "/usr/local/bin/containerd-rootless.sh"
	if err := os.WriteFile(m.Path(script), nerdctlFile(t, "extras/rootless/containerd-rootless.sh"), 0o755); err != nil {
		t.Fatal(err)
	}
	makeTun(t, m)
	user := addUser(t, m)
	startContainerd(t, m, append(user, script)...)
	generate := append(user, "gpucdi", "generate", "--output", path.Join(home, ".config/cdi/nvidia.yaml"))
	if _, err := m.Output(t.Context(), generate[0], generate[1:]...); err != nil {
		t.Fatal(err)
	}
	nerdctl := append(user, "nerdctl")
	loadDebian(t, m, nerdctl...)
	testDevices(t, m, nerdctl...)
}

// makeTun creates the TUN device node, which slirp4netns requires.
func makeTun(t *testing.T, m *container.Machine) {
	t.Helper()
	if _, err := m.Output(t.Context(), "sh", "-ec", "mkdir -p /dev/net; mknod -m 666 /dev/net/tun c 10 200"); err != nil {
		t.Fatal(err)
	}
}

// nerdctlFile reads a file of nerdctl's module.
func nerdctlFile(t *testing.T, name string) []byte {
	t.Helper()
	dir, err := tools.ModuleDir(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	download := exec.CommandContext(t.Context(), "go", "mod", "download", "-json", "github.com/containerd/nerdctl/v2")
	download.Dir = filepath.Join(dir, "node/tools/nerdctl")
	out, err := download.Output()
	if err != nil {
		t.Fatal(err)
	}
	var module struct{ Dir string }
	if err := json.Unmarshal(out, &module); err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(filepath.Join(module.Dir, name))
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// testDevices runs containers with a tool that has a --device flag for CDI devices.
func testDevices(t *testing.T, m *container.Machine, tool ...string) {
	gpus := m.Driver.State().GPUs
	for _, tc := range []struct {
		name string
		args []string
		gpus []int
	}{
		{"by index", []string{"--device", "nvidia.com/gpu=0"}, []int{0}},
		{"two", []string{"--device", "nvidia.com/gpu=1", "--device", "nvidia.com/gpu=" + gpus[6].UUID}, []int{1, 6}},
		{"all", []string{"--device", "nvidia.com/gpu=all"}, []int{0, 1, 2, 3, 4, 5, 6, 7}},
		{"not root, read-only root", []string{"--device", "nvidia.com/gpu=4", "--user", "1000", "--read-only"}, []int{4}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			out, err := run(t, m, tool, tc.args, "sh", "-c", "ls -d /dev/nvidia[0-9]* && nvidia-smi -L")
			if err != nil {
				t.Fatal(err)
			}
			if want := nodesAndNames(gpus, tc.gpus); out != want {
				t.Errorf("the container prints\n%s\nwant\n%s", out, want)
			}
		})
	}
	t.Run("environment", func(t *testing.T) {
		checkLibcudaPath(t, m, tool, "/usr/lib64")
	})
	t.Run("none", func(t *testing.T) {
		out, err := run(t, m, tool, []string{"--env", "NVIDIA_VISIBLE_DEVICES=all"}, "ls", "/dev")
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(out, "nvidia") {
			t.Errorf("the container has device nodes:\n%s", out)
		}
	})
}

// checkLibcudaPath requires TRITON_LIBCUDA_PATH to be set exactly once in a container, to dir.
func checkLibcudaPath(t *testing.T, m *container.Machine, tool []string, dir string, args ...string) {
	t.Helper()
	out, err := run(t, m, tool, append([]string{"--device", "nvidia.com/gpu=0"}, args...), "cat", "/proc/self/environ")
	if err != nil {
		t.Fatal(err)
	}
	const name = "TRITON_LIBCUDA_PATH="
	got := slices.DeleteFunc(strings.Split(out, "\x00"), func(variable string) bool { return !strings.HasPrefix(variable, name) })
	if want := []string{name + dir}; !slices.Equal(got, want) {
		t.Errorf("the environment has %q, want %q", got, want)
	}
}

// nodesAndNames returns the expected output of ls and nvidia-smi -L in a container with the GPUs at indexes.
func nodesAndNames(gpus []simdriver.GPU, indexes []int) string {
	var nodes, names []string
	for i, g := range indexes {
		nodes = append(nodes, fmt.Sprintf("/dev/nvidia%d\n", gpus[g].Minor))
		names = append(names, fmt.Sprintf("GPU %d: %s (UUID: %s)\n", i, gpus[g].Name, gpus[g].UUID))
	}
	return strings.Join(append(nodes, names...), "")
}

func run(t *testing.T, m *container.Machine, tool, args []string, command ...string) (string, error) {
	all := slices.Concat(tool, []string{"run", "--rm", "--network", "none"}, args, []string{images.DebianName}, command)
	return m.Output(t.Context(), all[0], all[1:]...)
}

// startContainerd runs a command that executes containerd, and waits until nerdctl of the same user can connect.
func startContainerd(t *testing.T, m *container.Machine, command ...string) {
	t.Helper()
	startDaemon(t, m, append(slices.Clone(command[:len(command)-1]), "nerdctl", "info"), command...)
}

// daemonTimeout bounds the start of a daemon.
const daemonTimeout = 5 * time.Minute

// startDaemon runs a command that executes a daemon, and waits until the command check succeeds.
func startDaemon(t *testing.T, m *container.Machine, check []string, command ...string) {
	t.Helper()
	log, err := os.Create(filepath.Join(t.TempDir(), "daemon.log"))
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.WithoutCancel(t.Context()))
	daemon := m.Command(ctx, command[0], command[1:]...)
	daemon.Cancel = func() error { return daemon.Process.Signal(syscall.SIGTERM) }
	daemon.Stdout, daemon.Stderr = log, log
	if err := daemon.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- daemon.Wait() }()
	t.Cleanup(func() {
		stop()
		<-ended
		log.Close()
	})
	starting, cancel := context.WithTimeout(t.Context(), daemonTimeout)
	defer cancel()
	for m.Command(starting, check[0], check[1:]...).Run() != nil {
		select {
		case err := <-ended:
			ended <- err
			text, _ := os.ReadFile(log.Name())
			t.Fatalf("%s exited: %v\n%s", command, err, text)
		case <-starting.Done():
			text, _ := os.ReadFile(log.Name())
			t.Fatalf("%s is not ready after %s:\n%s", command, daemonTimeout, text)
		case <-time.After(100 * time.Millisecond):
		}
	}
}

func loadDebian(t *testing.T, m *container.Machine, tool ...string) {
	t.Helper()
	archive, err := images.Debian(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	file, err := os.Open(archive)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	load := m.Command(t.Context(), tool[0], append(tool[1:], "load")...)
	load.Stdin = file
	if out, err := load.CombinedOutput(); err != nil {
		t.Fatalf("loading the image: %v\n%s", err, out)
	}
}
