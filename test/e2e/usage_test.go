package e2e

import (
	"fmt"
	"strconv"
	"strings"
	"testing"

	"github.com/gpucdi/gpucdi/test/simdriver"
)

const mib = 1 << 20

// containerUsage starts three pods that share a GPU, and one with a MIG device. The metrics of each pod are the usage
// of its own processes.
func containerUsage(t *testing.T, c *cluster) {
	gpus := c.driver.State().GPUs
	shared, partitioned := gpus[2].UUID, gpus[7].UUID
	if err := c.driver.Partition(partitioned, "3g.40gb", "3g.40gb"); err != nil {
		t.Fatal(err)
	}
	c.configure(t, "mig: {strategy: mixed}\nresources: [{name: nvidia.com/shared, select: {uuid: ["+shared+"]}, replicas: 3}]\n")
	c.awaitAllocatable(t, "nvidia.com/shared", "3")
	c.awaitAllocatable(t, "nvidia.com/mig-3g.40gb", "2")
	for _, pod := range []string{"first", "second", "idle"} {
		c.run(t, pod, 0, "resources: {limits: {nvidia.com/shared: 1}}")
		c.awaitPhase(t, pod, "Running")
	}
	c.run(t, "part", 0, "resources: {limits: {nvidia.com/mig-3g.40gb: 1}}")
	c.awaitPhase(t, "part", "Running")
	part := c.gpusOf(t, "part")[1] // the MIG device, listed after its GPU
	c.allocateMemory(t, "first", 300, 45)
	c.allocateMemory(t, "first", 10, 1) // a second process
	c.allocateMemory(t, "second", 7000, 2)
	c.allocateMemory(t, "part", 512, 64)

	c.awaitOutput(t, fmt.Sprintf(`gpucdi_mig_device_memory_used_bytes{device=%q,gpu=%q}`, part, partitioned), c.metrics)
	if out := c.metrics(t); strings.Contains(out, "gpucdi_container_gpu") {
		t.Errorf("agent without hostPID has metrics of containers:\n%s", out)
	}
	c.hostPID(t, true)
	used := func(pod, device, gpu string, mebibytes int) string {
		bytes := strconv.FormatFloat(float64(mebibytes*mib), 'g', -1, 64)
		return fmt.Sprintf(`gpucdi_container_gpu_memory_used_bytes{container="main",device=%q,gpu=%q,namespace="default",pod=%q} %s`+"\n", device, gpu, pod, bytes)
	}
	for _, line := range []string{used("first", shared, shared, 356), used("second", shared, shared, 7002), used("idle", shared, shared, 0),
		used("part", part, partitioned, 576)} {
		c.awaitOutput(t, line, c.metrics)
	}
	if n := strings.Count(c.metrics(t), "\ngpucdi_container_gpu_memory_used_bytes{"); n != 4 {
		t.Errorf("%d containers have memory, want 4:\n%s", n, c.metrics(t))
	}

	pid := c.setUtilization(t, shared, "/tmp/allocate 300 45", 30)
	utilization := func(pod, value string) string {
		return fmt.Sprintf(`gpucdi_container_gpu_utilization_ratio{container="main",device=%q,gpu=%q,namespace="default",pod=%q} %s`+"\n", shared, shared, pod, value)
	}
	c.awaitOutput(t, utilization("first", "0.3"), c.metrics)
	if out := c.metrics(t); !strings.Contains(out, utilization("second", "0")) {
		t.Errorf("pod second does not have the utilization 0:\n%s", out)
	}

	c.sh(t, fmt.Sprintf("kill -9 %d", pid))
	c.awaitOutput(t, used("first", shared, shared, 11), c.metrics)
	c.remove(t, "second")
	await(t, "the metrics of pod second to end", func() (string, bool) {
		out := c.metrics(t)
		return out, !strings.Contains(out, `pod="second"`)
	})

	c.hostPID(t, false)
	for _, pod := range []string{"first", "idle", "part"} {
		c.remove(t, pod)
	}
	if err := c.driver.Update(func(s *simdriver.State) error { s.Processes = nil; return nil }); err != nil {
		t.Fatal(err)
	}
	if err := c.driver.Unpartition(partitioned); err != nil {
		t.Fatal(err)
	}
	c.configure(t, "")
	c.awaitGPUs(t, "8")
}

// allocateMemory starts a process in a pod that makes two allocations, of first and second MiB, on the pod's first GPU
// or MIG device.
func (c *cluster) allocateMemory(t *testing.T, pod string, first, second int) {
	t.Helper()
	if result := c.tryAllocate(t, pod, first, second); result != "0" {
		t.Fatalf("allocating memory in pod %s: %s", pod, result)
	}
}

// tryAllocate is like allocateMemory, but returns the CUresult, or why libcuda cannot be loaded. If that is not 0, the
// process has exited.
func (c *cluster) tryAllocate(t *testing.T, pod string, first, second int) string {
	t.Helper()
	return c.exec(t, pod, allocateProgram.install(t)+fmt.Sprintf(
		"env -i /tmp/allocate %d %d >/tmp/out 2>&1 & until [ -s /tmp/out ] || ! kill -0 $! 2>/dev/null; do sleep 0.1; done; cat /tmp/out; rm /tmp/out", first, second))
}

// endAllocations ends the processes of allocateMemory in a pod.
func (c *cluster) endAllocations(t *testing.T, pod string) {
	t.Helper()
	c.exec(t, pod, `for p in /proc/[0-9]*; do [ "$(readlink $p/exe)" != /tmp/allocate ] || kill ${p#/proc/}; done`)
}

// setUtilization finds a process on the node by its command line, makes the driver report its utilization of a GPU, and
// returns its PID.
func (c *cluster) setUtilization(t *testing.T, gpu, command string, percent int) (pid int) {
	t.Helper()
	out, err := c.Box.Command(t.Context(), "pgrep", "-f", "^"+command+"$").Output()
	if err != nil {
		t.Fatalf("finding the process %s: %v", command, err)
	}
	if pid, err = strconv.Atoi(strings.TrimSpace(string(out))); err != nil {
		t.Fatal(err)
	}
	err = c.driver.Update(func(s *simdriver.State) error {
		s.Processes = []simdriver.Process{{Device: gpu, PID: pid, Utilization: percent}}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return pid
}

// hostPID patches the DaemonSet as the chart's value hostPID does, and waits for the new agent.
func (c *cluster) hostPID(t *testing.T, enabled bool) {
	t.Helper()
	c.kubectl(t, "patch", "daemonset", "--namespace", "gpucdi", "gpucdi", "--patch", fmt.Sprintf(`{"spec": {"template": {"spec": {"hostPID": %t}}}}`, enabled))
	c.kubectl(t, "rollout", "status", "--namespace", "gpucdi", "daemonset/gpucdi", "--timeout", timeout.String())
	await(t, "one agent", func() (string, bool) {
		pods := c.agentPod(t)
		return pods, pods != "" && !strings.Contains(pods, " ")
	})
}
