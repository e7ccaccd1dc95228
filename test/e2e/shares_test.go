package e2e

import (
	"context"
	"testing"
)

const sharingDocument, sharesSection = "docs/sharing.md", "Share a GPU between ResourceClaims"

// sharedGPU runs the pod of docs/sharing.md with its config. Claims share a GPU while its memory and cores suffice; a
// larger one, and one without capacity requests, get others. A claim that fits on no GPU waits for one that ends.
func sharedGPU(t *testing.T, c *cluster) {
	blocks := blocksOf(t, sharingDocument, sharesSection, "yaml")
	c.configure(t, blocks[0])
	defer c.configure(t, "allocation: {mode: dra}\n")
	c.awaitOutput(t, "true true true true true true true true", func(t *testing.T) string {
		return c.kubectl(t, "get", "resourceslices", "-o", "jsonpath={.items[*].spec.devices[*].allowMultipleAllocations}")
	})
	c.runToCompletion(t, "on-quarter", blocks[1])
	if _, err := c.Kubectl(context.Background(), "delete", "resourceclaimtemplate", "quarter"); err != nil {
		t.Error(err)
	}

	share := func(name, requests string) {
		t.Helper()
		if requests == "" {
			c.claim(t, name, 1)
		} else {
			c.claim(t, name, 1, "capacity: {requests: {"+requests+"}}")
		}
		c.runWithClaim(t, name, name)
	}
	share("first", "cores: 25, memory: 20Gi")
	c.awaitPhase(t, "first", "Running")
	share("second", "cores: 25, memory: 20Gi")
	share("large", "cores: 25, memory: 50Gi")
	share("whole", "")
	gpu := map[string]string{}
	for _, pod := range []string{"first", "second", "large", "whole"} {
		c.awaitPhase(t, pod, "Running")
		uuids := c.gpusOf(t, pod)
		if len(uuids) != 1 {
			t.Fatalf("pod %s sees %v", pod, uuids)
		}
		gpu[pod] = uuids[0]
	}
	if gpu["first"] != gpu["second"] || gpu["large"] == gpu["first"] || gpu["whole"] == gpu["first"] || gpu["whole"] == gpu["large"] {
		t.Errorf("pods have the GPUs %v, want first and second to share one", gpu)
	}
	c.killAgent(t)
	share("third", "cores: 50, memory: 30Gi")
	c.awaitPhase(t, "third", "Running")
	if uuids := c.gpusOf(t, "third"); uuids[0] != gpu["first"] {
		t.Errorf("pod third sees %v, want the rest of %s", uuids, gpu["first"])
	}
}
