package e2e

import (
	"slices"
	"strings"
	"testing"

	"github.com/gpucdi/gpucdi/test/node"
	"github.com/gpucdi/gpucdi/test/simdriver"
)

// migDevices partitions a GPU and allocates one of its MIG devices to a pod.
func migDevices(t *testing.T, c *cluster) {
	const strategy = "nvidia.com/mig.strategy"
	c.configure(t, "mig: {strategy: mixed}\n")
	c.awaitLabels(t, map[string]string{strategy: "mixed"})

	partitioned := c.driver.State().GPUs[7].UUID
	if err := c.driver.Partition(partitioned, slices.Repeat([]string{"1g.10gb"}, 7)...); err != nil {
		t.Fatal(err)
	}
	await(t, "7 MIG devices", func() (string, bool) {
		got := c.kubectl(t, "get", "node", node.Name, "-o", `jsonpath={.status.allocatable.nvidia\.com/mig-1g\.10gb}`)
		return got, got == "7"
	})
	c.awaitGPUs(t, "7")
	c.awaitLabels(t, map[string]string{strategy: "mixed", "nvidia.com/mig-1g.10gb.count": "7",
		"nvidia.com/mig-1g.10gb.slices.gi": "1", "nvidia.com/gpu.count": "8"})
	c.run(t, "part", 0, "resources: {limits: {nvidia.com/mig-1g.10gb: 1}}")
	c.awaitPhase(t, "part", "Running")
	seen := c.gpusOf(t, "part")
	parts := c.driver.State().GPUs[7].MIG
	if len(seen) != 2 || seen[0] != partitioned || !slices.ContainsFunc(parts, func(m simdriver.MIGDevice) bool { return m.UUID == seen[1] }) {
		t.Errorf("nvidia-smi -L lists %v, want %s and one of %v", seen, partitioned, parts)
	}
	if caps := strings.Fields(c.exec(t, "part", "ls /dev/nvidia-caps")); len(caps) != 2 {
		t.Errorf("pod has the MIG capabilities %v, want two", caps)
	}

	// The GPU is advertised as a whole again once no pod holds a MIG device of it.
	if err := c.driver.Unpartition(partitioned); err != nil {
		t.Fatal(err)
	}
	c.remove(t, "part")
	c.awaitGPUs(t, "8")
	c.configure(t, "")
	await(t, "the default strategy", func() (string, bool) { now := c.labels(t)[strategy]; return now, now == "" })
}
