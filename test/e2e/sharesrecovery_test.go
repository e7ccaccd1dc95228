package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

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
	c.runOnNode(t, "rm -rf /var/run/cdi/*")
	c.runWithShare(t, "emptied", "cores: 10, memory: 5Gi")
	c.awaitPhase(t, "emptied", "Running")
	limits["emptied"] = 5
	c.restartContainer(t, "first")
	check()

	c.killAgentInPrepare(t, "interrupted", "cores: 10, memory: 6Gi")
	limits["interrupted"] = 6
	check()

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
