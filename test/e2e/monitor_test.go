package e2e

import (
	"slices"
	"strings"
	"testing"
)

// monitoringPods follows docs/monitoring-pods.md while a pod holds all GPUs, and removes one of them and adds it again.
// NVIDIA's GPU feature discovery is the example of a monitoring program without special support in gpucdi.
func monitoringPods(t *testing.T, c *cluster) {
	const document, resource = "docs/monitoring-pods.md", "nvidia.com/gpu-monitor"
	c.configure(t, blocksOf(t, document, "Enable the resource", "yaml")[0])
	c.awaitAllocatable(t, resource, "4")
	c.run(t, "work", 8)
	c.awaitPhase(t, "work", "Running")
	if out := c.sh(t, blocksOf(t, document, "Enable the resource", "sh")[0]); !strings.Contains(out, "4\n") {
		t.Errorf("the node lists\n%s", out)
	}

	daemonSet := blocksOf(t, document, "Request it", "yaml")[0]
	if err := c.Apply(t.Context(), []byte(daemonSet)); err != nil {
		t.Fatal(err)
	}
	c.kubectl(t, "rollout", "status", "daemonset/gpu-monitor", "--timeout", timeout.String())
	for _, g := range c.driver.State().GPUs {
		c.awaitOutput(t, "(UUID: "+g.UUID+")", func(t *testing.T) string { return c.kubectl(t, "logs", "daemonset/gpu-monitor") })
	}
	c.kubectl(t, "delete", "daemonset", "gpu-monitor", "--wait", "--cascade=foreground")

	c.run(t, "monitor", 0, "resources: {limits: {"+resource+": 1}}",
		"volumeMounts: [{name: gfd, mountPath: /gfd}]\n  volumes: [{name: gfd, hostPath: {path: /opt/nvidia-device-plugin}}]")
	c.awaitPhase(t, "monitor", "Running")
	all := c.gpusOf(t, "monitor")
	if len(all) != 8 {
		t.Errorf("the monitor has GPUs %v, want 8", all)
	}
	discovered := c.exec(t, "monitor", "/gfd/gpu-feature-discovery --oneshot --no-timestamp --use-node-feature-api=false --output-file= --machine-type-file=/dev/null")
	if !strings.Contains(discovered, "nvidia.com/gpu.count=8") {
		t.Errorf("GPU feature discovery in the monitor prints\n%s", discovered)
	}
	if containers := c.status(t); strings.Contains(containers, "not allocated") {
		t.Errorf("gpucdi status reports that the monitor uses GPUs not allocated to it:\n%s", containers)
	}
	if findings := c.doctor(t); strings.Contains(findings, "not allocated") {
		t.Errorf("gpucdi doctor reports that the monitor uses GPUs not allocated to it:\n%s", findings)
	}

	removed, err := c.driver.Remove(all[3])
	if err != nil {
		t.Fatal(err)
	}
	c.awaitGPUs(t, "7")
	if now := c.gpusOf(t, "monitor"); len(now) != 7 || slices.Contains(now, all[3]) {
		t.Errorf("after a GPU was removed, the monitor has GPUs %v", now)
	}
	if err := c.driver.Add(removed); err != nil {
		t.Fatal(err)
	}
	c.awaitGPUs(t, "8")
	if now := c.gpusOf(t, "monitor"); !slices.Equal(now, all) {
		t.Errorf("after the GPU has returned, the running monitor has GPUs %v, want %v", now, all)
	}

	if removed, err = c.driver.Remove(all[3]); err != nil {
		t.Fatal(err)
	}
	c.awaitGPUs(t, "7")
	c.exitContainer(t, "monitor")
	c.awaitRestarts(t, "monitor", "1")
	c.awaitAllocatable(t, resource, "4")
	if err := c.driver.Add(removed); err != nil {
		t.Fatal(err)
	}
	c.awaitGPUs(t, "8")
	if now := c.gpusOf(t, "work"); len(now) != 8 {
		t.Errorf("the workload has GPUs %v, want 8", now)
	}
	c.checkDisabledMonitor(t, resource, all)
}

// checkDisabledMonitor checks that a pod keeps its monitor device when the resource is disabled and its container
// restarts, and that the device is released with the pod.
func (c *cluster) checkDisabledMonitor(t *testing.T, resource string, all []string) {
	t.Helper()
	c.configure(t, "")
	c.awaitAllocatable(t, resource, "0")
	c.awaitOutput(t, "draining", c.status)
	c.exitContainer(t, "monitor")
	c.awaitRestarts(t, "monitor", "2")
	if now := c.gpusOf(t, "monitor"); !slices.Equal(now, all) {
		t.Errorf("after the resource was disabled, the monitor has GPUs %v, want %v", now, all)
	}
	c.remove(t, "monitor")
	await(t, "the monitor to be released", func() (string, bool) {
		out := c.status(t)
		return out, !strings.Contains(out, "draining")
	})
	c.remove(t, "work")
	c.configure(t, "")
	c.awaitGPUs(t, "8")
}

// awaitRestarts waits until the container of a pod has restarted the given number of times and is ready.
func (c *cluster) awaitRestarts(t *testing.T, pod, restarts string) {
	t.Helper()
	await(t, pod+" to restart", func() (string, bool) {
		got, err := c.Kubectl(t.Context(), "get", "pod", pod, "-o", `jsonpath={.status.containerStatuses[0].restartCount} {.status.containerStatuses[0].ready}`)
		return string(got), err == nil && string(got) == restarts+" true"
	})
}
