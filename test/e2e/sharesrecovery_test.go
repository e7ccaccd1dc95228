package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/gpucdi/gpucdi/test/node/images"
	"github.com/gpucdi/gpucdi/test/simdriver"
)

// memoryLimitFails makes the driver set no memory limit (NVML_ERROR_UNKNOWN).
var memoryLimitFails = simdriver.Fault{Func: "nvmlDeviceSetMemoryLimits_v1", Return: 999}

// sharesRecover checks that the pods in limits, whose claims have parts of GPUs, keep their limits, in GiB, and that new
// pods get theirs, while the CDI directory is emptied, the agent is killed, and the node is rebooted. Each pod has a
// claim of its name.
func sharesRecover(t *testing.T, c *cluster, limits map[string]int) {
	check := func() {
		t.Helper()
		for pod, gib := range limits {
			c.checkLimit(t, pod, gib)
		}
	}
	c.neverUnlimited(t)
	c.runOnNode(t, "rm -rf /var/run/cdi/*")
	c.runWithShare(t, "emptied", "cores: 10, memory: 5Gi")
	c.awaitPhase(t, "emptied", "Running")
	limits["emptied"] = 5
	c.restartContainer(t, "first")
	check()

	c.killAgentInPrepare(t, "interrupted", "cores: 10, memory: 6Gi")
	limits["interrupted"] = 6
	check()
	c.neverUnlimited(t)

	err := c.Reboot(t.Context(), func() error {
		if err := c.driver.Unload(); err != nil { // no memory limit survives
			return err
		}
		if err := c.driver.Load(); err != nil {
			return err
		}
		return c.driver.InjectFault(memoryLimitFails)
	})
	if err != nil {
		t.Fatal(err)
	}
	for pod := range limits {
		c.awaitOutput(t, "GPU memory of the pod not limited", func(t *testing.T) string {
			c.retry(t, pod) // the first attempts fail until the agent has registered
			time.Sleep(2 * time.Second)
			return c.kubectl(t, "get", "events", "--field-selector", "involvedObject.name="+pod+",reason=FailedPrepareDynamicResources", "-o", "jsonpath={.items[*].message}")
		})
		await(t, "pod "+pod+" not to run without a memory limit after a reboot", func() (string, bool) {
			running := c.running(t, pod)
			return running, running == ""
		})
	}
	if err := c.driver.ClearFaults(); err != nil {
		t.Fatal(err)
	}
	for pod := range limits {
		c.retry(t, pod)
	}
	for pod := range limits {
		await(t, "the container of pod "+pod, func() (string, bool) {
			running := c.running(t, pod)
			return running, running != ""
		})
	}
	c.awaitKubelet(t)
	c.rolloutStatus(t)
	check()
	c.neverUnlimited(t)
}

// proberName is the name of a pod whose program tries, from the start of its container on, to allocate more GPU memory
// than its limit. The results outlive the container.
const (
	proberName = "prober"
	proberLog  = "/var/lib/prober/log"
)

// startProber starts the prober with a part of a GPU, and returns its limit in GiB.
func (c *cluster) startProber(t *testing.T) (gib int) {
	t.Helper()
	const limit = 4
	c.claim(t, proberName, 1, fmt.Sprintf("capacity: {requests: {cores: 10, memory: %dGi}}", limit))
	command := allocateProgram.install(t) +
		fmt.Sprintf("while true; do timeout 20 /tmp/allocate %d 1 >>%s 2>&1; sleep 0.5; done", limit*1024+1, proberLog)
	manifest := fmt.Sprintf(`{apiVersion: v1, kind: Pod, metadata: {name: %[1]s}, spec: {terminationGracePeriodSeconds: 1, hostNetwork: true,
automountServiceAccountToken: false, resourceClaims: [{name: gpu, resourceClaimName: %[1]s}],
volumes: [{name: log, hostPath: {path: %[2]s, type: DirectoryOrCreate}}],
containers: [{name: main, image: %[3]s, imagePullPolicy: Never, command: [sh, -c, %[4]q], resources: {claims: [{name: gpu}]},
volumeMounts: [{name: log, mountPath: %[2]s}]}]}}`, proberName, filepath.Dir(proberLog), images.DebianName, command)
	if err := c.Apply(t.Context(), []byte(manifest)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.remove(t, proberName) })
	c.awaitPhase(t, proberName, "Running")
	return limit
}

// neverUnlimited checks that all attempts of the prober have failed, and waits until it has tried again.
func (c *cluster) neverUnlimited(t *testing.T) {
	t.Helper()
	results := func() map[string]int {
		data, err := os.ReadFile(c.Box.Path(proberLog))
		if err != nil {
			t.Fatal(err)
		}
		count := map[string]int{}
		for line := range strings.Lines(string(data)) {
			count[strings.TrimSpace(line)]++
		}
		return count
	}
	before := results()
	await(t, "another attempt of the prober", func() (string, bool) {
		now := results()
		return fmt.Sprint(now), now[cudaOutOfMemory] > before[cudaOutOfMemory]
	})
	now := results()
	t.Logf("results of the prober: %v", now)
	if now[cudaSuccess] > 0 {
		t.Errorf("the prober got memory beyond its limit: %v", now)
	}
}

// running returns the state of the running container of a pod; empty if it does not run. The phase of a pod stays Running
// over a reboot.
func (c *cluster) running(t *testing.T, pod string) string {
	t.Helper()
	return c.kubectl(t, "get", "pod", pod, "-o", "jsonpath={.status.containerStatuses[*].state.running}")
}

// killAgentInPrepare starts a pod with a claim that requests capacity, and kills the agent when the claim has its record
// but the pod no memory limit yet. The pod must not start before it has the limit.
func (c *cluster) killAgentInPrepare(t *testing.T, name, capacity string) {
	t.Helper()
	if err := c.driver.InjectFault(memoryLimitFails); err != nil {
		t.Fatal(err)
	}
	c.runWithShare(t, name, capacity)
	record := c.Box.Path(filepath.Join("/run/gpucdi/claims", c.kubectl(t, "get", "resourceclaim", name, "-o", "jsonpath={.metadata.uid}")+".json"))
	await(t, "the record of the claim", func() (string, bool) {
		_, err := os.Stat(record)
		return fmt.Sprint(err), err == nil
	})
	c.killAgent(t)
	if phase := c.kubectl(t, "get", "pod", name, "-o", "jsonpath={.status.phase}"); phase != "Pending" {
		t.Errorf("pod %s is %s without a memory limit", name, phase)
	}
	if err := c.driver.ClearFaults(); err != nil {
		t.Fatal(err)
	}
	c.retry(t, name)
	c.awaitPhase(t, name, "Running")
}

// retry changes a pod, so that the kubelet prepares its claims again now instead of after a minute or more.
func (c *cluster) retry(t *testing.T, pod string) {
	t.Helper()
	c.kubectl(t, "annotate", "pod", pod, "--overwrite", fmt.Sprint("retry=", time.Now().UnixNano()))
}
