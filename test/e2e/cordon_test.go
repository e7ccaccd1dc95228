package e2e

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// gpucdi runs a gpucdi command in the agent's pod.
func (c *cluster) gpucdi(t *testing.T, args ...string) string {
	t.Helper()
	return c.kubectl(t, append([]string{"exec", "--namespace", "gpucdi", "daemonset/gpucdi", "--", "gpucdi"}, args...)...)
}

// cordonedGPU cordons the GPU of a running pod. The pod keeps it, also in its next container, and other pods get other
// GPUs.
func cordonedGPU(t *testing.T, c *cluster) {
	c.run(t, "stays", 1)
	c.awaitPhase(t, "stays", "Running")
	gpus := c.gpusOf(t, "stays")
	held, container := gpus[0], c.containerID(t, "stays")
	if out := c.gpucdi(t, "cordon", held, "--reason", "fan replacement"); !strings.Contains(out, held+") cordoned") {
		t.Errorf("gpucdi cordon prints %q", out)
	}
	c.awaitGPUs(t, "7")
	c.awaitEvent(t, "Normal", "GPUCordoned", held+") is cordoned: fan replacement")
	c.awaitOutput(t, `gpucdi_gpu_healthy{code="cordoned",gpu="`+held+`"} 0`, c.metrics)
	explain := func(t *testing.T) string { return c.gpucdi(t, "explain", held) }
	for _, want := range []string{"unhealthy", "cordoned: fan replacement", "gpucdi uncordon", "default/stays/main"} {
		c.awaitOutput(t, want, c.status)
		c.awaitOutput(t, want, explain)
	}
	if log := c.agentLog(t); !strings.Contains(log, `"device cordoned"`) {
		t.Errorf("the log lacks the cordon:\n%s", log)
	}
	c.awaitLabels(t, map[string]string{"nvidia.com/gpu.count": "8"})
	c.checkBundle(t, "cordoned: fan replacement")

	for name, disturb := range map[string]func(*testing.T){"agent": c.restartAgent, "kubelet": c.restartKubelet, "killed agent": c.killAgent} {
		start := time.Now()
		disturb(t)
		c.awaitRegistration(t, start)
		c.awaitGPUs(t, "7")
		c.awaitState(t, held, "unhealthy")
		if now := c.gpusOf(t, "stays"); c.containerID(t, "stays") != container || !slices.Equal(now, gpus) {
			t.Errorf("after a restart of the %s the pod has %v, want %v in the same container", name, now, gpus)
		}
	}
	c.exitContainer(t, "stays")
	c.awaitRestarts(t, "stays", "1")
	if now := c.gpusOf(t, "stays"); !slices.Equal(now, gpus) {
		t.Errorf("the next container has %v, want %v", now, gpus)
	}
	// The scheduler counts the pod's GPU against the 7 allocatable ones, so one healthy GPU stays unused.
	c.run(t, "others", 6)
	c.awaitPhase(t, "others", "Running")
	if now := c.gpusOf(t, "others"); slices.Contains(now, held) {
		t.Errorf("another pod got the cordoned GPU: %v", now)
	}
	c.remove(t, "others")
	c.remove(t, "stays")
	c.run(t, "seven", 7)
	c.awaitPhase(t, "seven", "Running")
	if now := c.gpusOf(t, "seven"); slices.Contains(now, held) {
		t.Errorf("another pod got the cordoned GPU after its pod ended: %v", now)
	}
	c.remove(t, "seven")
	c.returnedCordoned(t, held)
	if out := c.gpucdi(t, "uncordon", held); !strings.Contains(out, " uncordoned") {
		t.Errorf("gpucdi uncordon prints %q", out)
	}
	c.awaitGPUs(t, "8")
	c.run(t, "all", 8)
	c.awaitPhase(t, "all", "Running")
	c.remove(t, "all")
}

// checkBundle creates a bundle as in docs/troubleshooting.md. The bundle must contain status, but neither the
// environment nor the service account token of the agent's pod.
func (c *cluster) checkBundle(t *testing.T, status string) {
	t.Helper()
	c.sh(t, "agent=daemonset/gpucdi; cd /tmp\n"+blocksOf(t, troubleshooting, "Report a bug", "sh")[0])
	names := strings.Fields(c.sh(t, "tar -tzf /tmp/bundle.tar.gz"))
	for _, name := range []string{"doctor.json", "status.json", "list.json", "metrics.txt", "versions.json", "runtime.json", "config.yaml",
		"cdi/gpucdi.dev-gpu.json", "checkpoint.json", "errors.txt"} {
		if !slices.Contains(names, "gpucdi/"+name) {
			t.Errorf("the bundle lacks %s: %q", name, names)
		}
	}
	text := c.sh(t, "tar -xzOf /tmp/bundle.tar.gz")
	token := c.kubectl(t, "exec", "--namespace", "gpucdi", "daemonset/gpucdi", "--", "cat", "/var/run/secrets/kubernetes.io/serviceaccount/token")
	if !strings.Contains(text, status) || token == "" || strings.Contains(text, token) || strings.Contains(text, "KUBERNETES_SERVICE_HOST") {
		t.Errorf("the bundle lacks %q or has a secret:\n%s", status, text)
	}
}

// returnedCordoned removes a cordoned GPU and adds it again. It stays cordoned, even if its cordon file is damaged.
func (c *cluster) returnedCordoned(t *testing.T, uuid string) {
	t.Helper()
	gone, err := c.driver.Remove(uuid)
	if err != nil {
		t.Fatal(err)
	}
	c.awaitState(t, uuid, "")
	if err := c.driver.Add(gone); err != nil {
		t.Fatal(err)
	}
	c.awaitState(t, uuid, "unhealthy")
	c.awaitOutput(t, "cordoned: fan replacement", c.status)
	file := c.Box.Path(filepath.Join("/run/gpucdi/cordons", uuid+".json"))
	if err := os.WriteFile(file, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	c.killAgent(t)
	c.awaitOutput(t, "keeping the device cordoned", c.status)
	c.awaitState(t, uuid, "unhealthy")
}

// claimCordoned cordons the GPU of a claim while the taint effect of faults is NoExecute. A cordon evicts no pod.
func claimCordoned(t *testing.T, c *cluster) {
	c.sh(t, "helm upgrade gpucdi deploy/gpucdi --namespace gpucdi --reuse-values --set config.allocation.taintEffect=NoExecute")
	c.syncConfig(t)
	c.claim(t, "kept", 1)
	c.runWithClaim(t, "stays", "kept")
	c.awaitPhase(t, "stays", "Running")
	held := c.gpusOf(t, "stays")[0]
	c.gpucdi(t, "cordon", held)
	c.awaitOutput(t, "gpu-"+strings.TrimPrefix(held, "GPU-")+" gpucdi.dev/cordoned=:NoSchedule", c.taints)
	c.claim(t, "rest", 7)
	c.runWithClaim(t, "others", "rest")
	c.awaitPhase(t, "others", "Running")
	c.claim(t, "one", 1)
	c.runWithClaim(t, "waits", "one")
	await(t, "waits to be unschedulable", func() (string, bool) {
		reason := c.kubectl(t, "get", "pod", "waits", "-o", `jsonpath={.status.conditions[?(@.type=="PodScheduled")].reason}`)
		return reason, reason == "Unschedulable"
	})
	c.awaitPhase(t, "stays", "Running")
	c.killAgent(t)
	c.awaitOutput(t, "gpucdi.dev/cordoned=:NoSchedule", c.taints)
	c.remove(t, "stays")
	c.gpucdi(t, "uncordon", held)
	c.awaitPhase(t, "waits", "Running")
	if now := c.gpusOf(t, "waits"); !slices.Equal(now, []string{held}) {
		t.Errorf("after uncordon the waiting pod has %v, want %s", now, held)
	}
	c.remove(t, "waits")
	c.remove(t, "others")
	c.sh(t, "helm upgrade gpucdi deploy/gpucdi --namespace gpucdi --reuse-values --set config.allocation.taintEffect=NoSchedule")
	c.syncConfig(t)
}
