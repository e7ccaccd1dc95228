package e2e

import (
	"strings"
	"testing"

	"github.com/gpucdi/gpucdi/test/docs"
)

// readme does what README says under Deploy, on a node that has the agent: the
// commands must work again on it.
func readme(t *testing.T, c *cluster) {
	commands, err := docs.Blocks(t.Context(), "README.md", "Deploy", "sh")
	if err != nil {
		t.Fatal(err)
	}
	var printed strings.Builder
	for _, block := range commands {
		printed.WriteString(c.sh(t, block))
	}
	runtime, _ := c.runtime(t)
	for _, want := range []string{"NODE   GPUS\nbox    8\n", "pass  runtime        " + runtime, "pass  agent ", "nvidia.com/gpu registered for", "registered with the kubelet"} {
		if !strings.Contains(printed.String(), want) {
			t.Errorf("%q is not in\n%s", want, printed.String())
		}
	}

	manifests, err := docs.Blocks(t.Context(), "README.md", "Deploy", "yaml")
	if err != nil {
		t.Fatal(err)
	}
	for _, manifest := range manifests {
		if err := c.Apply(t.Context(), []byte(manifest)); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() { c.remove(t, "gpus") })
	await(t, "the pod of README to end", func() (string, bool) {
		phase := c.kubectl(t, "get", "pod", "gpus", "-o", "jsonpath={.status.phase}")
		return phase, phase == "Succeeded"
	})
	if out := c.kubectl(t, "logs", "gpus"); strings.Count(out, "(UUID: GPU-") != 2 {
		t.Errorf("the pod of README printed %s", out)
	}
}
