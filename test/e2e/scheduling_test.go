package e2e

import (
	"os"
	"strings"
	"testing"

	"github.com/gpucdi/gpucdi/test/docs"
)

const scheduling = "docs/scheduling.md"

// models does what docs/scheduling.md says: its pods find the node that they
// ask for, and one that asks for another waits.
func models(t *testing.T, c *cluster) {
	if out := c.sh(t, blocks(t, "GPUs of different models", "sh")[0]); !strings.Contains(strings.Join(strings.Fields(out), " "), "NVIDIA-H100-80GB-HBM3 81559 8") {
		t.Errorf("the models are\n%s", out)
	}
	h100 := blocks(t, "One model", "yaml")[0]
	c.succeeds(t, "on-h100", h100)
	c.waits(t, "on-h100", strings.Replace(h100, "H100-80GB-HBM3", "A100-SXM4-80GB", 1), scheduling, "didn't match Pod's node affinity/selector")
	c.waits(t, "on-h100", strings.Replace(h100, "nvidia.com/gpu: 1", "nvidia.com/gpu: 9", 1), scheduling, "Insufficient nvidia.com/gpu")

	needs := blocks(t, "What a program needs", "yaml")[0]
	c.succeeds(t, "needs-memory", needs)
	c.waits(t, "needs-memory", strings.Replace(needs, "40000", "90000", 1), scheduling, "didn't match Pod's node affinity/selector")

	taint := blocks(t, "Nodes for pods with GPUs alone", "sh")
	c.sh(t, taint[0])
	c.waits(t, "on-h100", h100, scheduling, "had untolerated taint")
	c.succeeds(t, "tolerant", blocks(t, "Nodes for pods with GPUs alone", "yaml")[0])
	c.sh(t, taint[1])
	c.succeeds(t, "on-h100", h100)
}

func blocks(t *testing.T, section, language string) []string {
	t.Helper()
	found, err := docs.Blocks(t.Context(), scheduling, section, language)
	if err != nil {
		t.Fatal(err)
	}
	return found
}

// succeeds runs a pod that lists its one GPU.
func (c *cluster) succeeds(t *testing.T, pod, manifest string) {
	t.Helper()
	if err := c.Apply(t.Context(), []byte(manifest)); err != nil {
		t.Fatal(err)
	}
	defer c.remove(t, pod)
	await(t, pod+" to end", func() (string, bool) {
		phase := c.kubectl(t, "get", "pod", pod, "-o", "jsonpath={.status.phase}")
		return phase, phase == "Succeeded"
	})
	if out := c.kubectl(t, "logs", pod); strings.Count(out, "(UUID: GPU-") != 1 {
		t.Errorf("%s printed %s", pod, out)
	}
}

// waits applies a pod that does not start, for a reason that a document tells.
func (c *cluster) waits(t *testing.T, pod, manifest, document, reason string) {
	t.Helper()
	if err := c.Apply(t.Context(), []byte(manifest)); err != nil {
		t.Fatal(err)
	}
	defer c.remove(t, pod)
	c.awaitOutput(t, reason, func(t *testing.T) string { return c.kubectl(t, "describe", "pod", pod) })
	if phase := c.kubectl(t, "get", "pod", pod, "-o", "jsonpath={.status.phase}"); phase != "Pending" {
		t.Errorf("%s is %s", pod, phase)
	}
	text, err := os.ReadFile("../../" + document)
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(text), "`"+reason+"` |") {
		t.Errorf("%s does not tell %q", document, reason)
	}
}
