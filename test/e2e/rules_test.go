package e2e

import (
	"slices"
	"strings"
	"testing"

	"github.com/gpucdi/gpucdi/test/simdriver"
)

// resourceRules applies the rules of docs/resources.md to a node with eight H100 and two GTX 1060, and removes and
// restores the rules while pods run. Pods keep their GPUs.
func resourceRules(t *testing.T, c *cluster) {
	const document, h100, small = "docs/resources.md", "nvidia.com/h100", "nvidia.com/gpu.small"
	var gtx []string // UUIDs
	for i, g := range simdriver.GTX1060x2().GPUs {
		g.Minor = 8 + i
		if err := c.driver.Add(g); err != nil {
			t.Fatal(err)
		}
		gtx = append(gtx, g.UUID)
	}
	c.awaitGPUs(t, "10")
	rules := blocksOf(t, document, "Write rules", "yaml")[0]
	c.configure(t, rules)
	c.awaitAllocatable(t, h100, "7")
	c.awaitAllocatable(t, small, "8")
	c.awaitGPUs(t, "0")
	gpus := c.driver.State().GPUs // by PCI bus ID: the two GTX 1060, then the H100
	excluded := gpus[len(gpus)-1].UUID
	preview := c.sh(t, blocksOf(t, document, "Preview the result", "sh")[0])
	for _, want := range [][]string{{excluded, "excluded - 1 resources[0]"}, {gtx[0], small + " devicePlugin 4 resources[2]"}, {gpus[2].UUID, h100 + " devicePlugin 1 resources[1]"}} {
		if !slices.ContainsFunc(strings.Split(preview, "\n"), func(line string) bool {
			return strings.Contains(line, want[0]) && strings.Contains(strings.Join(strings.Fields(line), " "), want[1])
		}) {
			t.Errorf("the preview has no line with %q:\n%s", want, preview)
		}
	}

	example := blocksOf(t, document, "Use the resources", "yaml")[0]
	if err := c.Apply(t.Context(), []byte(example)); err != nil {
		t.Fatal(err)
	}
	c.awaitPhase(t, "on-h100", "Succeeded")
	if out := c.kubectl(t, "logs", "on-h100"); strings.Count(out, "(UUID: GPU-") != 2 {
		t.Errorf("pod on-h100 prints %s, want two GPUs", out)
	}
	c.remove(t, "on-h100")
	c.run(t, "greedy", 0, "resources: {limits: {"+small+": 2}}")
	c.awaitPhase(t, "greedy", "Failed")
	if out := c.kubectl(t, "describe", "pod", "greedy"); !strings.Contains(out, "UnexpectedAdmissionError") || !strings.Contains(out, "failRequestsGreaterThanOne") {
		t.Errorf("a pod with two replicas: %s", out)
	}
	c.remove(t, "greedy")

	c.run(t, "large", 0, "resources: {limits: {"+h100+": 7}}")
	for _, pod := range []string{"first", "second"} {
		c.run(t, pod, 0, "resources: {limits: {"+small+": 1}}")
	}
	held := map[string][]string{}
	for pod, isGTX := range map[string]bool{"large": false, "first": true, "second": true} {
		c.awaitPhase(t, pod, "Running")
		held[pod] = c.gpusOf(t, pod)
		if slices.Contains(held[pod], excluded) || slices.ContainsFunc(held[pod], func(uuid string) bool { return slices.Contains(gtx, uuid) != isGTX }) {
			t.Errorf("pod %s has GPUs %v", pod, held[pod])
		}
	}
	checkPods := func() {
		t.Helper()
		for pod, gpus := range held {
			if now := c.gpusOf(t, pod); !slices.Equal(now, gpus) {
				t.Errorf("pod %s has GPUs %v, want %v as before", pod, now, gpus)
			}
		}
	}
	c.configure(t, "")
	c.awaitAllocatable(t, h100, "0")
	c.awaitGPUs(t, "1") // the excluded GPU; pods hold all others
	checkPods()
	c.remove(t, "first")
	delete(held, "first")
	c.configure(t, rules)
	c.awaitAllocatable(t, h100, "7")
	c.awaitAllocatable(t, small, "8")
	checkPods()
	for pod := range held {
		c.remove(t, pod)
	}
	for _, uuid := range gtx {
		if _, err := c.driver.Remove(uuid); err != nil {
			t.Fatal(err)
		}
	}
	c.configure(t, "")
	c.awaitGPUs(t, "8")
}
