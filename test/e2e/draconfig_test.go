package e2e

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gpucdi/gpucdi/test/node/images"
	"github.com/gpucdi/gpucdi/test/simdriver"
)

// draConfig is the config of docs/dra.md after "Enable DRA".
const draConfig = "nodes: [{section: dra, allocation: {mode: dra}}]\n"

// restoreDRA applies draConfig, and waits until all GPUs are in the slices.
func (c *cluster) restoreDRA(t *testing.T) {
	t.Helper()
	c.configure(t, draConfig)
	c.awaitSlices(t, 8)
	c.awaitGPUs(t, "0")
}

// singleGPU allocates one GPU through DRA by a rule, and the others through the device plugin.
func singleGPU(t *testing.T, c *cluster) {
	c.configure(t, "resources: [{select: {index: [0]}, mode: dra}]\n")
	c.awaitSlices(t, 1)
	c.awaitGPUs(t, "7")
	t.Run("used", func(t *testing.T) {
		c.watchDisjoint(t)
		c.claim(t, "one", 1)
		c.runWithClaim(t, "claimed", "one")
		c.run(t, "unchanged", 7)
		c.awaitPhase(t, "claimed", "Running")
		c.awaitPhase(t, "unchanged", "Running")
		first := c.driver.State().GPUs[0].UUID
		if seen := c.gpusOf(t, "claimed"); !slices.Equal(seen, []string{first}) {
			t.Errorf("the pod with the claim sees %v, want %s", seen, first)
		}
		if seen := c.gpusOf(t, "unchanged"); len(seen) != 7 || slices.Contains(seen, first) {
			t.Errorf("the pod of the device plugin sees %v, want the 7 others", seen)
		}
		refusedForPluginPod(t, c)
	})
	c.restoreDRA(t)
}

// refusedForPluginPod moves the node to DRA while pod "unchanged" holds GPUs, and allocates one of these to a claim, as
// a scheduler with stale data would. The claim is refused, and the message names the pod.
func refusedForPluginPod(t *testing.T, c *cluster) {
	held := c.gpusOf(t, "unchanged")[0]
	c.configure(t, draConfig)
	c.awaitGPUs(t, "0")
	c.allocate(t, "early", held)
	c.runWithClaim(t, "refused", "early")
	c.awaitOutput(t, "held by pod default/unchanged; waited 30s", func(t *testing.T) string {
		return c.kubectl(t, "get", "events", "--field-selector", "involvedObject.name=refused", "-o", "jsonpath={.items[*].message}")
	})
}

// namedGPU gives a GPU the resource of the DeviceClass in docs/resources.md, which a pod requests. A class of the chart
// does not select it.
func namedGPU(t *testing.T, c *cluster) {
	c.configure(t, draConfig+"resources: [{select: {index: [5]}, name: nvidia.com/h100}]\n")
	c.awaitOutput(t, "nvidia.com/h100", func(t *testing.T) string {
		return c.kubectl(t, "get", "resourceslices", "-o", `jsonpath={.items[*].spec.devices[*].attributes.gpucdi\.dev/resource.string}`)
	})
	if err := c.Apply(t.Context(), []byte(blocksOf(t, "docs/resources.md", "Use the resources through DRA", "yaml")[0])); err != nil {
		t.Fatal(err)
	}
	t.Run("used", func(t *testing.T) {
		c.run(t, "named", 0, "resources: {limits: {nvidia.com/h100: 1}}")
		c.run(t, "others", 7)
		c.awaitPhase(t, "named", "Running")
		c.awaitPhase(t, "others", "Running")
		if got, want := c.onlyGPUOf(t, "named"), c.driver.State().GPUs[5].UUID; got != want {
			t.Errorf("the pod sees %s, want %s", got, want)
		}
	})
	c.kubectl(t, "delete", "deviceclass", "h100")
	c.restoreDRA(t)
}

// evictedByTaint raises an XID on the GPU of a claim under a config in which a fault evicts pods. The taint of a transient
// XID ends after the quiet period.
func evictedByTaint(t *testing.T, c *cluster) {
	c.configure(t, "nodes: [{section: dra, allocation: {mode: dra, taintEffect: NoExecute}, health: {quietPeriod: 5s}}]\n")
	t.Run("evicts", func(t *testing.T) {
		c.claim(t, "faulty", 1)
		c.claim(t, "good", 1)
		c.startWithClaim(t, "evicted", "faulty")
		c.awaitPhase(t, "evicted", "Running")
		c.runWithClaim(t, "stays", "good")
		c.awaitPhase(t, "stays", "Running")
		uuid := c.gpusOf(t, "evicted")[0]
		c.setRecoveryAction(t, uuid, simdriver.RecoveryReset)
		if err := c.driver.RaiseXID(uuid, 48); err != nil {
			t.Fatal(err)
		}
		await(t, "the end of the pod", func() (string, bool) {
			out := c.kubectl(t, "get", "pod", "evicted", "--ignore-not-found", "-o", "jsonpath={.status.phase}")
			return out, out == ""
		})
		if taints := c.taints(t); !strings.Contains(taints, "gpu-"+strings.TrimPrefix(uuid, "GPU-")) || !strings.Contains(taints, ":NoExecute") {
			t.Errorf("taints %q", taints)
		}
		if phase := c.kubectl(t, "get", "pod", "stays", "-o", "jsonpath={.status.phase}"); phase != "Running" {
			t.Errorf("the pod with a healthy GPU is %s", phase)
		}
		time.Sleep(6 * time.Second) // until a probe has read the recovery action
		c.setRecoveryAction(t, uuid, simdriver.RecoveryNone)
		await(t, "no taint", func() (string, bool) { now := c.taints(t); return now, now == "" })
	})
	t.Run("ends after the quiet period", func(t *testing.T) {
		faulty, agent := c.slices(t)[0], c.agentContainer(t)
		if err := c.driver.RaiseXID(faulty, 9999); err != nil {
			t.Fatal(err)
		}
		c.awaitOutput(t, "gpu-"+strings.TrimPrefix(faulty, "GPU-")+" gpu.nvidia.com/xid=9999:NoExecute", c.taints)
		took := await(t, "no taint", func() (string, bool) { now := c.taints(t); return now, now == "" })
		t.Logf("no taint %s after it was seen", took.Round(time.Millisecond))
		if now := c.agentContainer(t); now != agent {
			t.Errorf("the agent's container is %s, was %s", now, agent)
		}
	})
	c.restoreDRA(t)
}

// adminAccess runs a pod that monitors all GPUs while another one has them.
func adminAccess(t *testing.T, c *cluster) {
	c.kubectl(t, "label", "namespace", "default", "resource.kubernetes.io/admin-access=true")
	c.claim(t, "all", 8)
	c.runWithClaim(t, "works", "all")
	c.awaitPhase(t, "works", "Running")
	c.claim(t, "admin", 8, "adminAccess: true")
	c.runWithClaim(t, "monitors", "admin")
	c.awaitPhase(t, "monitors", "Running")
	if all, seen := c.gpusOf(t, "works"), c.gpusOf(t, "monitors"); len(seen) != 8 || !slices.Equal(all, seen) {
		t.Errorf("the monitoring pod sees %v, want %v", seen, all)
	}
}

// profileClass runs a pod that requests the resource of a MIG profile, which the DeviceClass of the chart serves.
func profileClass(t *testing.T, c *cluster, profile, gpu, device string) {
	manifest := fmt.Sprintf(`{apiVersion: v1, kind: Pod, metadata: {name: profile}, spec: {terminationGracePeriodSeconds: 1, containers: [
{name: main, image: %s, imagePullPolicy: Never, command: [sleep, infinity], resources: {limits: {nvidia.com/mig-%s: 1}}}]}}`, images.DebianName, profile)
	if err := c.Apply(t.Context(), []byte(manifest)); err != nil {
		t.Fatal(err)
	}
	c.awaitPhase(t, "profile", "Running")
	if seen := c.gpusOf(t, "profile"); !slices.Equal(seen, []string{gpu, device}) {
		t.Errorf("the pod sees %v, want %s and %s", seen, gpu, device)
	}
	c.remove(t, "profile")
}
