package e2e

import (
	"os"
	"strings"
	"testing"
	"time"

	"github.com/gpucdi/gpucdi/test/docs"
)

const scheduling = "docs/scheduling.md"

// modelSelection runs the commands and pods of docs/scheduling.md. Pods that match this node run, and modified pods
// that do not match it stay pending.
func modelSelection(t *testing.T, c *cluster) {
	if out := c.sh(t, blocks(t, "List the GPU models of the cluster", "sh")[0]); !strings.Contains(strings.Join(strings.Fields(out), " "), "NVIDIA-H100-80GB-HBM3 81559 8") {
		t.Errorf("listing the models of the nodes prints\n%s", out)
	}
	h100 := blocks(t, "Select a model", "yaml")[0]
	c.runToCompletion(t, "on-h100", h100)
	c.staysPending(t, "on-h100", strings.Replace(h100, "H100-80GB-HBM3", "A100-SXM4-80GB", 1), scheduling, "didn't match Pod's node affinity/selector")
	c.staysPending(t, "on-h100", strings.Replace(h100, "nvidia.com/gpu: 1", "nvidia.com/gpu: 9", 1), scheduling, "Insufficient nvidia.com/gpu")

	needs := blocks(t, "Select by capability", "yaml")[0]
	c.runToCompletion(t, "needs-memory", needs)
	c.staysPending(t, "needs-memory", strings.Replace(needs, "40000", "90000", 1), scheduling, "didn't match Pod's node affinity/selector")

	commands := blocks(t, "Reserve GPU nodes", "sh")
	c.sh(t, commands[0])
	time.Sleep(time.Second) // for the scheduler, which may receive the pod before the taint
	c.staysPending(t, "on-h100", h100, scheduling, "had untolerated taint")
	c.runToCompletion(t, "tolerant", blocks(t, "Reserve GPU nodes", "yaml")[0])
	c.sh(t, commands[1])
	c.runToCompletion(t, "on-h100", h100)
}

// blocks returns the code blocks of a section of docs/scheduling.md.
func blocks(t *testing.T, section, language string) []string {
	t.Helper()
	return blocksOf(t, scheduling, section, language)
}

// blocksOf returns the code blocks of a section of a document.
func blocksOf(t *testing.T, document, section, language string) []string {
	t.Helper()
	found, err := docs.Blocks(t.Context(), document, section, language)
	if err != nil {
		t.Fatal(err)
	}
	return found
}

// runToCompletion runs a pod that requests one GPU and logs its UUID.
func (c *cluster) runToCompletion(t *testing.T, pod, manifest string) {
	t.Helper()
	if err := c.Apply(t.Context(), []byte(manifest)); err != nil {
		t.Fatal(err)
	}
	defer c.remove(t, pod)
	await(t, pod+" to succeed", func() (string, bool) {
		phase := c.kubectl(t, "get", "pod", pod, "-o", "jsonpath={.status.phase}")
		return phase, phase == "Succeeded"
	})
	if out := c.kubectl(t, "logs", pod); strings.Count(out, "(UUID: GPU-") != 1 {
		t.Errorf("pod %s prints %s, want one GPU", pod, out)
	}
}

// staysPending checks that a pod does not start, and that a document lists the reason.
func (c *cluster) staysPending(t *testing.T, pod, manifest, document, reason string) {
	t.Helper()
	if err := c.Apply(t.Context(), []byte(manifest)); err != nil {
		t.Fatal(err)
	}
	defer c.remove(t, pod)
	c.awaitOutput(t, reason, func(t *testing.T) string { return c.kubectl(t, "describe", "pod", pod) })
	if phase := c.kubectl(t, "get", "pod", pod, "-o", "jsonpath={.status.phase}"); phase != "Pending" {
		t.Errorf("pod %s is %s, want Pending", pod, phase)
	}
	text, err := os.ReadFile("../../" + document)
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(text), "`"+reason+"` |") {
		t.Errorf("%s does not list %q", document, reason)
	}
}
