package e2e

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/gpucdi/gpucdi/test/simdriver"
)

const sharingDocument, sharesSection = "docs/sharing.md", "Share a GPU between ResourceClaims"

var partCases = []claimCase{
	{"claims share a GPU", sharedGPU},
	{"claims and replicas have compute ceilings", computeCeilings},
	{"a claim gets a MIG device", claimedMIG},
	{"a monitoring pod gets all GPUs by admin access", adminAccess},
}

// TestDRAParts allocates parts of GPUs to claims.
func TestDRAParts(t *testing.T) {
	inTurn(t, 9)
	runClaimCases(t, partCases)
}

// sharedGPU runs the pod of docs/sharing.md with its config. Claims share a GPU while its memory and cores suffice. A
// larger claim and a claim without capacity requests get other GPUs. Each pod can allocate only the memory of its
// claim.
func sharedGPU(t *testing.T, c *cluster) {
	version := c.driver.State().Version
	blocks := blocksOf(t, sharingDocument, sharesSection, "yaml")
	c.configure(t, strings.Replace(blocks[0], "share: memory", "share: memory, level: any", 1))
	levels := func(t *testing.T) string {
		return c.kubectl(t, "get", "resourceslices", "-o", `jsonpath={.items[*].spec.devices[*].attributes.gpucdi\.dev/memoryIsolation.string}`)
	}
	demanding := blocksOf(t, "docs/isolation.md", "Demand a level", "yaml")[1] + "---\n" +
		strings.ReplaceAll(blocks[1], "resourceClaimTemplateName: quarter", "resourceClaimTemplateName: isolated")
	isPending := func(reason string) {
		t.Helper()
		c.awaitOutput(t, reason, c.status)
		c.awaitOutput(t, strings.TrimSpace(strings.Repeat("none ", 8)), levels)
		if err := c.Apply(t.Context(), []byte(demanding)); err != nil {
			t.Fatal(err)
		}
		c.awaitOutput(t, "cannot allocate all claims", func(t *testing.T) string { return c.kubectl(t, "describe", "pod", "on-quarter") })
		c.remove(t, "on-quarter")
	}
	upgrade := func(version string) {
		t.Helper()
		if err := c.driver.Upgrade(version); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := os.Stat(c.Box.Path("/sys/fs/cgroup/cgroup.controllers")); err != nil { // a machine with cgroup v1
		upgrade("615.71.09")
		isPending("the node uses cgroup v1")
		upgrade(version)
		c.emulateCgroup2(t)
	} else {
		t.Log("cgroup v1 was not tested, because this machine has cgroup v2")
	}
	isPending("the driver is older than 615")
	upgrade("615.71.09")
	c.configure(t, blocks[0]+"nri: {enabled: true}\n") // no limit depends on NRI
	defer func() {
		if err := c.driver.Upgrade(version); err != nil {
			t.Error(err)
		}
		c.configure(t, "allocation: {mode: dra}\n")
	}()
	c.awaitOutput(t, strings.TrimSpace(strings.Repeat("driver ", 8)), levels)
	c.awaitOutput(t, strings.TrimSpace(strings.Repeat("true ", 8)), func(t *testing.T) string {
		return c.kubectl(t, "get", "resourceslices", "-o", "jsonpath={.items[*].spec.devices[*].allowMultipleAllocations}")
	})
	c.runToCompletion(t, "on-quarter", blocks[1])
	c.runToCompletion(t, "on-quarter", blocks[1])
	c.runToCompletion(t, "on-quarter", demanding)
	if _, err := c.Kubectl(context.Background(), "delete", "resourceclaimtemplate", "quarter", "isolated"); err != nil {
		t.Error(err)
	}

	c.runWithShare(t, "first", "cores: 25, memory: 20Gi")
	c.awaitPhase(t, "first", "Running")
	c.runWithShare(t, "second", "cores: 25, memory: 20Gi")
	c.awaitPhase(t, "second", "Running") // otherwise large may be scheduled first, beside pod first
	c.runWithShare(t, "large", "cores: 25, memory: 50Gi")
	c.claim(t, "whole", 1)
	c.runWithClaim(t, "whole", "whole")
	gpu := map[string]string{}
	for _, pod := range []string{"first", "second", "large", "whole"} {
		c.awaitPhase(t, pod, "Running")
		gpu[pod] = c.onlyGPUOf(t, pod)
	}
	if gpu["first"] != gpu["second"] || gpu["large"] == gpu["first"] || gpu["whole"] == gpu["first"] || gpu["whole"] == gpu["large"] {
		t.Errorf("pods have the GPUs %v, want first and second to share one", gpu)
	}
	c.awaitOutput(t, "25 cores of "+gpu["first"]+" booked, but not enforced", func(t *testing.T) string {
		return c.kubectl(t, "describe", "resourceclaim", "first")
	})
	limits := map[string]int{"first": 20, "second": 20, "large": 50} // in GiB
	for pod, gib := range limits {
		c.checkLimit(t, pod, gib)
	}
	c.killAgent(t)
	c.runWithShare(t, "third", "cores: 50, memory: 30Gi")
	c.awaitPhase(t, "third", "Running")
	if gpu["third"] = c.onlyGPUOf(t, "third"); gpu["third"] != gpu["first"] {
		t.Errorf("pod third sees %s, want the rest of %s", gpu["third"], gpu["first"])
	}
	c.checkLimit(t, "third", 30)
	c.hasOnlyDriver(t, "third")
	shown := func(t *testing.T) string {
		return c.sh(t, blocksOf(t, "docs/isolation.md", "Show the levels", "sh")[0])
	}
	c.awaitOutput(t, "driver", shown) // the labels follow the agent's start
	if out := shown(t); !strings.Contains(out, "MEMORY-ISOLATION") {
		t.Errorf("the labels of isolation levels are\n%s", out)
	}
	for _, want := range []string{
		fmt.Sprintf(`gpucdi_share_memory_limit_bytes{claim="third",container="main",device="%[1]s",gpu="%[1]s",namespace="default",pod="third"} %[2]v`, gpu["first"], float64(30<<30)),
		fmt.Sprintf(`gpucdi_shared_cores_free{device="%[1]s",gpu="%[1]s"} 0`, gpu["first"]),
		fmt.Sprintf(`gpucdi_device_isolation_info{compute="timeslice",device="%[1]s",gpu="%[1]s",memory="driver"} 1`, gpu["first"]),
	} {
		c.awaitOutput(t, want+"\n", c.metrics)
	}
	c.usesMemory(t, "third", gpu["third"])
	c.restoresLimits(t, func() { c.checkLimit(t, "first", 20) })
	limits[proberName] = c.startProber(t)
	limitsPersist(t, c, "first", 20)
	sharesRecover(t, c, limits)

	// A second pod of a claim is refused, because its memory would not be limited.
	c.startWithClaim(t, "late", "second")
	defer c.remove(t, "late")
	c.awaitOutput(t, "the claim has a part of a GPU, so it is for one pod", func(t *testing.T) string {
		return c.kubectl(t, "describe", "pod", "late")
	})
}

// onePart runs a pod with a part of a GPU, which limits its memory. Kubernetes must be 1.36 or later.
func onePart(t *testing.T, c *cluster) {
	version := c.driver.State().Version
	c.emulateCgroup2(t)
	if err := c.driver.Upgrade("615.71.09"); err != nil {
		t.Fatal(err)
	}
	c.configure(t, blocksOf(t, sharingDocument, sharesSection, "yaml")[0])
	c.runWithShare(t, "part", "cores: 25, memory: 20Gi")
	c.awaitPhase(t, "part", "Running")
	c.onlyGPUOf(t, "part")
	c.checkLimit(t, "part", 20)
	c.restartContainer(t, "part")
	c.checkLimit(t, "part", 20)
	c.remove(t, "part")
	if err := c.driver.Upgrade(version); err != nil {
		t.Fatal(err)
	}
	// The test has changed the ConfigMap, so without --force-conflicts later commands of Helm would report a conflict.
	c.sh(t, "helm upgrade gpucdi deploy/gpucdi --namespace gpucdi --reuse-values --force-conflicts --wait")
	c.syncConfig(t)
	c.awaitSlices(t, 8)
}

// limitsPersist restarts a pod's container while the agent does not respond, and afterwards restarts the kubelet. The
// pod keeps its limit.
func limitsPersist(t *testing.T, c *cluster, pod string, gib int) {
	c.runOnNode(t, "pkill -STOP -x gpucdi")
	container := c.containerID(t, pod)
	c.exitContainer(t, pod)
	await(t, "the container to be restarted", func() (string, bool) {
		id := c.containerID(t, pod)
		return id, id != "" && id != container
	})
	c.awaitPhase(t, pod, "Running")
	c.checkLimit(t, pod, gib)
	c.runOnNode(t, "pkill -CONT -x gpucdi")
	c.restartKubelet(t)
	c.checkLimit(t, pod, gib)
}

// restoresLimits reloads the driver, which removes all limits, waits until the agent has restored those of all pods,
// and calls check. The agent does not restore the limits of containers.
func (c *cluster) restoresLimits(t *testing.T, check func()) {
	t.Helper()
	before, err := c.driver.MemoryLimits()
	before = slices.DeleteFunc(before, func(l simdriver.MemoryLimit) bool { return !c.isPodCgroup(l.Cgroup) })
	if err != nil || len(before) == 0 {
		t.Fatalf("memory limits of pods %v: %v", before, err)
	}
	if err := c.driver.Unload(); err != nil {
		t.Fatal(err)
	}
	if err := c.driver.Load(); err != nil {
		t.Fatal(err)
	}
	await(t, "the memory limits of pods to be restored", func() (string, bool) {
		now, err := c.driver.MemoryLimits()
		missing := slices.DeleteFunc(slices.Clone(before), func(l simdriver.MemoryLimit) bool {
			return slices.Contains(now, l) || !c.isPodCgroup(l.Cgroup) // the pod may have ended meanwhile
		})
		return fmt.Sprintf("missing %v, error %v", missing, err), err == nil && len(missing) == 0
	})
	check()
}

// isPodCgroup reports whether a cgroup, a path below the mount point, is that of a pod, not of a container, and exists.
func (c *cluster) isPodCgroup(cgroup string) bool {
	_, err := os.Stat(c.Box.Path("/sys/fs/cgroup" + cgroup))
	return err == nil && strings.HasPrefix(filepath.Base(cgroup), "pod")
}

// runWithShare starts a pod with a claim of the same name that requests capacity.
func (c *cluster) runWithShare(t *testing.T, name, capacity string) {
	t.Helper()
	c.claim(t, name, 1, "capacity: {requests: {"+capacity+"}}")
	c.runWithClaim(t, name, name)
}

func (c *cluster) onlyGPUOf(t *testing.T, pod string) string {
	t.Helper()
	uuids := c.gpusOf(t, pod)
	if len(uuids) != 1 {
		t.Fatalf("pod %s sees %v, want one GPU", pod, uuids)
	}
	return uuids[0]
}

// checkLimit checks that a process in a pod can allocate an amount of GPU memory, and no more. Both processes of the
// check are started by one command, since each takes seconds on a busy machine. Their environment is empty, except for the
// directory of the MPS server, without which they cannot use a GPU with compute ceilings.
func (c *cluster) checkLimit(t *testing.T, pod string, gib int) {
	t.Helper()
	got := c.exec(t, pod, allocateProgram.install(t)+fmt.Sprintf(
		"for more in 100 101; do timeout 60 env -i ${CUDA_MPS_PIPE_DIRECTORY+CUDA_MPS_PIPE_DIRECTORY=$CUDA_MPS_PIPE_DIRECTORY} /tmp/allocate %d $more >/tmp/out 2>&1 & until [ -s /tmp/out ] || ! kill -0 $! 2>/dev/null; do sleep 0.1; done; "+
			"kill $! 2>/dev/null || true; wait; cat /tmp/out; rm /tmp/out; done", gib*1024-100))
	if want := cudaSuccess + "\n" + cudaOutOfMemory; got != want {
		t.Errorf("pod %s allocates %d GiB, and then 1 MiB more: CUDA returns %q, want %q", pod, gib, got, want)
	}
}

// usesMemory allocates memory in a pod, and checks that metrics and status report it.
func (c *cluster) usesMemory(t *testing.T, pod, gpu string) {
	t.Helper()
	if got := c.tryAllocate(t, pod, 1000, 24); got != cudaSuccess {
		t.Fatalf("CUDA returns %s", got)
	}
	c.awaitOutput(t, fmt.Sprintf(`gpucdi_share_memory_used_bytes{claim="%[1]s",container="main",device="%[2]s",gpu="%[2]s",namespace="default",pod="%[1]s"} 1.073741824e+09`, pod, gpu), c.metrics)
	if s := c.status(t); !strings.Contains(s, "1024 MiB") {
		t.Errorf("status lacks the use of memory:\n%s", s)
	}
	c.endAllocations(t, pod)
}
