package e2e

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/gpucdi/gpucdi/test/node"
)

var (
	claimSoakDuration = flag.Duration("soak", 45*time.Second, "duration of the random actions on claims")
	claimSoakSeed     = flag.Uint64("seed", 7, "seed of the random actions on claims")
)

// claimSoak adds and removes pods with claims and with nvidia.com/gpu at random, and deletes some of them by force,
// while the node switches between device plugin and DRA mode and components restart. No two pods have the
// same GPU at the same time, and all GPUs are free at the end.
func claimSoak(t *testing.T, c *cluster) {
	c.watchDisjoint(t)
	random := rand.New(rand.NewPCG(*claimSoakSeed, 0))
	const slots, claims = 5, 3
	running := map[string]bool{}
	counts := map[string]int{}
	for i := range claims {
		c.claim(t, fmt.Sprint("claim-", i), i+1)
		c.claimTemplate(t, fmt.Sprint("template-", i), i+1)
	}
	// Only pods with claims are deleted by force: the kubelet allocates the devices of a plugin to the next pod while the
	// containers of a pod deleted by force still run.
	remove := func(slot int) {
		pod := fmt.Sprint("pod-", slot)
		args := []string{"delete", "pod", pod, "--ignore-not-found"}
		if slot < claims && random.IntN(2) == 0 {
			args = append(args, "--grace-period=0", "--force")
		}
		c.kubectl(t, args...)
		delete(running, pod)
	}
	toDRA := []string{"label", "node", node.Name, "--overwrite", "nvidia.com/device-plugin.config=dra"}
	actions := []struct {
		name   string
		weight int
		do     func()
	}{
		{"pod", 6, func() {
			slot := random.IntN(slots)
			pod := fmt.Sprint("pod-", slot)
			if running[pod] {
				remove(slot)
			}
			switch {
			case slot >= claims:
				c.start(t, pod, 1+random.IntN(3))
			case random.IntN(2) == 0: // the pod of the same name with this claim may have ended by force, and still run
				c.startWithTemplate(t, pod, fmt.Sprint("template-", slot))
			default:
				c.startWithClaim(t, pod, fmt.Sprint("claim-", slot))
			}
			running[pod] = true
		}},
		{"removed", 4, func() { remove(random.IntN(slots)) }},
		{"to DRA", 2, func() { c.kubectl(t, toDRA...) }},
		{"back", 2, func() { c.kubectl(t, "label", "node", node.Name, "nvidia.com/device-plugin.config-") }},
		{"slices deleted", 1, func() { c.kubectl(t, "delete", "resourceslices", "--all") }},
		{"agent killed", 1, func() { c.runOnNode(t, "pkill -9 -x gpucdi || true") }},
		{"kubelet restarted", 1, func() {
			if err := c.RestartKubelet(t.Context()); err != nil {
				t.Fatal(err)
			}
		}},
	}
	var tickets []int
	for i, a := range actions {
		for range a.weight {
			tickets = append(tickets, i)
		}
	}
	for start := time.Now(); time.Since(start) < *claimSoakDuration; {
		a := actions[tickets[random.IntN(len(tickets))]]
		a.do()
		counts[a.name]++
		time.Sleep(time.Duration(random.IntN(1000)) * time.Millisecond)
	}
	t.Logf("seed %d, actions %v; pods rejected at admission: %s", *claimSoakSeed, counts,
		c.kubectl(t, "get", "pods", "--field-selector", "status.phase=Failed", "-o", "name"))
	for slot := range slots {
		c.remove(t, fmt.Sprint("pod-", slot))
	}
	c.kubectl(t, toDRA...)
	c.awaitSlices(t, 8)
	if err := c.WaitReady(t.Context()); err != nil {
		t.Fatal(err)
	}
	c.awaitGPUs(t, "0") // until then the scheduler may bind the pod for the device plugin, which rejects it
	c.run(t, "all", 8)
	c.awaitPhase(t, "all", "Running")
}
