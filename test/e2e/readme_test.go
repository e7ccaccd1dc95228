package e2e

import (
	"strings"
	"testing"
	"time"

	"github.com/gpucdi/gpucdi/test/docs"
)

// readme runs the commands of README's section "Quick start". They must also work on a node that already runs the
// agent.
func readme(t *testing.T, c *cluster) {
	commands, err := docs.Blocks(t.Context(), "README.md", "Quick start", "sh")
	if err != nil {
		t.Fatal(err)
	}
	var printed strings.Builder
	for _, block := range commands {
		if strings.Contains(block, "allocatable") { // the kubelet updates the node's status later
			c.awaitRegistration(t, time.Time{})
			await(t, "the command of README to print 8 GPUs", func() (string, bool) {
				out := c.sh(t, block)
				return out, strings.HasSuffix(out, "NODE   GPUS\nbox    8\n")
			})
			continue
		}
		printed.WriteString(c.sh(t, block))
	}
	runtime, _ := c.runtime(t)
	for _, want := range []string{"pass  runtime        " + runtime, "pass  agent ", "nvidia.com/gpu registered for", "registered with kubelet"} {
		if !strings.Contains(printed.String(), want) {
			t.Errorf("README's commands do not print %q:\n%s", want, printed.String())
		}
	}

	c.setSpread(t) // README applies the manifest without it

	manifests, err := docs.Blocks(t.Context(), "README.md", "Quick start", "yaml")
	if err != nil {
		t.Fatal(err)
	}
	for _, manifest := range manifests {
		if err := c.Apply(t.Context(), []byte(manifest)); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() { c.remove(t, "gpus") })
	await(t, "the pod of README to succeed", func() (string, bool) {
		phase := c.kubectl(t, "get", "pod", "gpus", "-o", "jsonpath={.status.phase}")
		return phase, phase == "Succeeded"
	})
	if out := c.kubectl(t, "logs", "gpus"); strings.Count(out, "(UUID: GPU-") != 2 {
		t.Errorf("pod of README prints %s, want two GPUs", out)
	}
}
