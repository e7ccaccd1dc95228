package devicemanager

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	oci "github.com/opencontainers/runtime-spec/specs-go"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/gpucdi/gpucdi/test/simdriver"
)

// The memory and utilization metrics of a container that shares a GPU include its own processes only.
func TestContainerUsage(t *testing.T) {
	t.Parallel()
	n := newNode(t, simdriver.H100x8())
	gpu := n.driver.State().GPUs[0]
	node := oci.LinuxDevice{Path: "/dev/nvidia0", Type: "c", Major: 195, Minor: int64(gpu.Minor)}
	n.runtime.startContainerWithSpec("first", "a1", node)
	n.runtime.startContainerWithSpec("second", "b2", node)
	n.runtime.startContainerWithSpec("idle", "c3", node)
	n.runtime.startContainerWithSpec("other", "d4")
	first, second, other := n.allocateMemory(t, 300), n.allocateMemory(t, 7000), n.allocateMemory(t, 9)
	n.writeCgroup(t, first, "a1")
	n.writeCgroup(t, second, "b2")
	n.writeCgroup(t, other, "d4") // its container has no device node of the GPU, so it is ignored
	if err := n.driver.Update(func(s *simdriver.State) error {
		s.Processes = []simdriver.Process{{Device: gpu.UUID, PID: first, Utilization: 30}, {Device: gpu.UUID, PID: other, Utilization: 60}}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	startKubelet(t, n.kubeletDir, 2)
	n.startAgent(t)
	n.awaitMetric(t, "gpucdi_gpu_memory_used_bytes{gpu="+strconv.Quote(gpu.UUID))
	n.awaitMetric(t, `gpucdi_component_healthy{component="kubelet"} 1`)
	if out := n.get(t, "/metrics"); strings.Contains(out, "gpucdi_container_gpu") {
		t.Errorf("the agent resolves PIDs although the PID namespace of the node's /proc is unknown:\n%s", out)
	}
	n.stopAgent(t)

	n.writeFile(t, "proc/self/status", "Name:\tgpucdi-nvml\nNSpid:\t1\n")
	n.startAgent(t)
	line := func(metric, pod, value string) string {
		return fmt.Sprintf("gpucdi_container_gpu_%s{container=%q,device=%q,gpu=%q,namespace=%q,pod=%q} %s\n", metric, "main", gpu.UUID, gpu.UUID, "default", pod, value)
	}
	for pod, want := range map[string][2]string{"first": {"3.145728e+08", "0.3"}, "second": {"7.340032e+09", "0"}, "idle": {"0", "0"}} {
		n.awaitMetric(t, line("memory_used_bytes", pod, want[0]))
		n.awaitMetric(t, line("utilization_ratio", pod, want[1]))
	}
	if out := n.get(t, "/metrics"); strings.Count(out, "\ngpucdi_container_gpu_memory_used_bytes{") != 3 {
		t.Errorf("want the memory of three containers:\n%s", out)
	}
}

// writeCgroup writes the cgroup file of a process of a container in the node's /proc.
func (n *node) writeCgroup(t *testing.T, pid int, container string) {
	t.Helper()
	n.writeFile(t, fmt.Sprintf("proc/%d/cgroup", pid), "0::/kubepods.slice/kubepods-pod1.slice/crio-"+container+".scope\n")
}

func (n *node) writeFile(t *testing.T, name, text string) {
	t.Helper()
	file := filepath.Join(n.root, name)
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// allocateMemory starts a process that allocates memory of the first GPU, in MiB, and returns its PID.
func (n *node) allocateMemory(t *testing.T, mebibytes int) int {
	t.Helper()
	program := filepath.Join(t.TempDir(), "allocate")
	if out, err := exec.Command("cc", "-o", program, "../e2e/testdata/allocate.c", "-ldl").CombinedOutput(); err != nil {
		t.Fatalf("compiling the program: %v\n%s", err, out)
	}
	cmd := exec.Command(program, strconv.Itoa(mebibytes-1), "1") // makes two allocations
	cmd.Env = n.driver.Command("nvidia-smi").Env
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill() // it may have exited
		_ = cmd.Wait()
	})
	if line, err := bufio.NewReader(stdout).ReadString('\n'); err != nil || line != "0\n" {
		t.Fatalf("allocating %d MiB: %q, %v", mebibytes, line, err)
	}
	return cmd.Process.Pid
}

// startContainerWithSpec adds a running container with devices in its OCI spec, and makes the runtime identify itself
// as CRI-O: the agent reads OCI specs of CRI-O through the CRI, but those of containerd through containerd's own API.
func (c *fakeContainerd) startContainerWithSpec(pod, id string, devices ...oci.LinuxDevice) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.name = "cri-o"
	c.specs[id] = &oci.Spec{Linux: &oci.Linux{Devices: devices}}
	c.pods[id] = &cri.ContainerConfig{Labels: map[string]string{"io.kubernetes.pod.uid": "uid-" + pod, "io.kubernetes.pod.name": pod,
		"io.kubernetes.pod.namespace": "default", "io.kubernetes.container.name": "main"}}
}
