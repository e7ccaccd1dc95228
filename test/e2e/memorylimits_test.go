package e2e

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"testing"
)

const (
	cudaSuccess     = "0"
	cudaOutOfMemory = "2"
)

// memoryLimits shares a GPU as four replicas, each with a quarter of its memory. The limit of a pod is the sum of its
// replicas, holds for all its processes together, and does not affect other pods.
func memoryLimits(t *testing.T, c *cluster) {
	version, gpu := c.driver.State().Version, c.driver.State().GPUs[3]
	c.emulateCgroup2(t)
	if err := c.driver.Upgrade("615.71.09"); err != nil {
		t.Fatal(err)
	}
	c.configure(t, quarterConfig(t, gpu.UUID))
	c.awaitOutput(t, "containers checked for", c.status)
	c.awaitAllocatable(t, quarterResource, "4")
	for _, pod := range []string{"first", "second", "half"} {
		count := 1
		if pod == "half" {
			count = 2
		}
		c.run(t, pod, 0, fmt.Sprintf("resources: {limits: {%s: %d}}", quarterResource, count))
		c.awaitPhase(t, pod, "Running")
	}
	c.checkContainerLimit(t, "half", gpu.Memory/2)
	c.hasOnlyDriver(t, "half")
	c.runToCompletion(t, "isolated", blocksOf(t, "docs/isolation.md", "Demand a level", "yaml")[0])
	quarter, half := int(gpu.Memory/mib/4), int(gpu.Memory/mib/2)
	allocates := func(pod string, first, second int, want string) {
		t.Helper()
		if got := c.tryAllocate(t, pod, first, second); got != want {
			t.Errorf("pod %s allocates %d and %d MiB: CUDA returns %s, want %s", pod, first, second, got, want)
		}
	}
	allocates("first", quarter-100, 101, cudaOutOfMemory)
	allocates("first", quarter-1000, 900, cudaSuccess)
	allocates("first", 101, 1, cudaOutOfMemory) // a second process
	allocates("first", 99, 1, cudaSuccess)
	allocates("second", quarter-1, 1, cudaSuccess)
	c.runOnNode(t, "pkill -STOP -x gpucdi") // no limit depends on the agent or on NRI
	allocates("half", half, 1, cudaOutOfMemory)
	c.runOnNode(t, "pkill -CONT -x gpucdi")
	allocates("half", half-1, 1, cudaSuccess)
	used := strconv.FormatFloat(float64(half)*float64(mib), 'g', -1, 64)
	c.awaitOutput(t, fmt.Sprintf(`gpucdi_share_memory_used_bytes{claim="",container="main",device="%[1]s",gpu="%[1]s",namespace="default",pod="half"} %[2]s`, gpu.UUID, used), c.metrics)
	c.awaitOutput(t, "pod default/half", c.status)

	c.endAllocations(t, "first")
	allocates("first", quarter, 1, cudaOutOfMemory)
	if got := c.exec(t, "first", fmt.Sprintf("LD_PRELOAD=libm.so.6 /tmp/allocate %d 1 || true", quarter)); got != cudaOutOfMemory {
		t.Errorf("with a preloaded library: CUDA returns %s, want %s", got, cudaOutOfMemory)
	}
	c.restartContainer(t, "first")
	allocates("first", quarter, 1, cudaOutOfMemory)
	allocates("first", quarter-1, 1, cudaSuccess)
	c.remove(t, "second")
	c.restoresLimits(t, func() { allocates("first", quarter, 1, cudaOutOfMemory) })

	// A container whose limit cannot be set waits.
	if err := c.driver.InjectFault(memoryLimitFails); err != nil {
		t.Fatal(err)
	}
	c.run(t, "waits", 0, "resources: {limits: {"+quarterResource+": 1}}")
	c.awaitOutput(t, "limiting the GPU memory of pod", func(t *testing.T) string { t.Helper(); return c.kubectl(t, "describe", "pod", "waits") })
	if err := c.driver.ClearFaults(); err != nil {
		t.Fatal(err)
	}
	c.awaitPhase(t, "waits", "Running")
	allocates("waits", quarter, 1, cudaOutOfMemory)

	for _, pod := range []string{"first", "half", "waits"} {
		c.remove(t, pod)
	}
	if err := c.driver.Upgrade(version); err != nil {
		t.Fatal(err)
	}
	c.configure(t, "")
	c.awaitGPUs(t, "8")
}

// quarterResource is the resource of quarterConfig.
const quarterResource = "nvidia.com/quarter"

// quarterConfig returns the config of docs/sharing.md with memory limits for four replicas of one GPU, with NRI enabled.
func quarterConfig(t *testing.T, gpu string) string {
	t.Helper()
	config := blocksOf(t, sharingDocument, "Limit the memory of each replica", "yaml")[0]
	return strings.Replace(config, "{name: nvidia.com/gpu,", "{select: {uuid: ["+gpu+"]}, name: "+quarterResource+",", 1) + "nri: {enabled: true}\n"
}

// emulateCgroup2 emulates cgroup v2 until the test ends.
func (c *cluster) emulateCgroup2(t *testing.T) {
	t.Helper()
	undo, err := c.EmulateCgroup2(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := undo(context.Background()); err != nil {
			t.Error(err)
		}
	})
}
