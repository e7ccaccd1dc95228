package e2e

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gpucdi/gpucdi/test/docs"
	"github.com/gpucdi/gpucdi/test/node"
)

// helmLifecycle runs the commands of docs/deploy.md for installation, changes of the config, the hook and
// uninstallation. They must not affect a running pod with two GPUs.
func helmLifecycle(t *testing.T, c *cluster) {
	uninstall, err := docs.Blocks(t.Context(), "README.md", "Uninstall", "sh")
	if err != nil {
		t.Fatal(err)
	}
	c.sh(t, uninstall[0])
	c.requireNoLabels(t)
	c.helm(t, "Install", 0)
	c.awaitGPUs(t, "8")
	c.run(t, "stays", 2)
	c.awaitPhase(t, "stays", "Running")
	container, gpus := c.containerID(t, "stays"), c.gpusOf(t, "stays")
	checkPod := func(after string) {
		t.Helper()
		if now := c.containerID(t, "stays"); now != container {
			t.Errorf("%s: container of pod stays was replaced", after)
		}
		if now := c.gpusOf(t, "stays"); !slices.Equal(now, gpus) {
			t.Errorf("%s: pod stays has GPUs %v, want %v", after, now, gpus)
		}
	}
	agent := c.agentPod(t)

	c.helm(t, "Change the config", 0)
	c.syncConfig(t)
	c.awaitOutput(t, "config changed", c.agentLog)
	if now := c.agentPod(t); now != agent {
		t.Errorf("config change replaced agent pod %s by %s", agent, now)
	}
	checkPod("after the upgrade")

	// Selecting a section by label requires permissions that the chart grants only with this upgrade.
	c.kubectl(t, "label", "node", node.Name, "nvidia.com/device-plugin.config=display")
	c.sh(t, "helm upgrade gpucdi deploy/gpucdi --namespace gpucdi --reuse-values --set-json "+
		`'config.nodes=[{"section":"display","cdi":{"features":["compute","utility","display"]}}]'`)
	c.syncConfig(t)
	c.awaitSpec(t, "nvidia_drv.so", true)
	c.kubectl(t, "label", "node", node.Name, "nvidia.com/device-plugin.config-")
	c.awaitSpec(t, "nvidia_drv.so", false)
	checkPod("after a label change")

	// Helm rejects values that violate the schema. The agent rejects what the schema cannot express.
	c.sh(t, "! helm upgrade gpucdi deploy/gpucdi --namespace gpucdi --reuse-values --set config.health.quietPeriod=often")
	c.sh(t, "helm upgrade gpucdi deploy/gpucdi --namespace gpucdi --reuse-values --set-json "+
		`'config.health.xids={"ignore":[79],"fatal":[79]}'`)
	c.syncConfig(t)
	c.awaitEvent(t, "Warning", "GPUConfigRefused", "got 79 in both")
	checkPod("after an invalid config")

	c.helm(t, "Change the config", 1)
	c.syncConfig(t)
	c.allocateRest(t, "after the rollback", gpus, 6)
	checkPod("after the rollback")

	c.helm(t, "Install the hook", 0)
	c.awaitSpec(t, "/opt/gpucdi/gpucdi-hook", true)
	c.awaitRegistration(t, time.Time{})
	c.run(t, "hooked", 1)
	c.awaitPhase(t, "hooked", "Running")
	if cache := c.exec(t, "hooked", "ldconfig -p"); !strings.Contains(cache, "libcuda.so.1") {
		t.Errorf("ldconfig -p does not list libcuda.so.1 with the hook:\n%s", cache)
	}
	c.remove(t, "hooked")
	checkPod("after enabling the hook")

	c.helm(t, "Uninstall", 0)
	c.awaitGPUs(t, "0")
	checkPod("after uninstall")
	c.checkUninstalled(t)

	// The chart does not delete a namespace that it has created: the last Job of the uninstallation runs in it.
	c.sh(t, "helm install gpucdi deploy/gpucdi --set createNamespace=true,namespaceOverride=gpu-system --wait")
	c.awaitGPUs(t, "8")
	await(t, "labels of the node", func() (string, bool) {
		labels := c.labels(t)
		return fmt.Sprint(labels), labels["nvidia.com/gpu.count"] != ""
	})
	c.sh(t, "helm uninstall gpucdi --wait")
	c.awaitGPUs(t, "0")
	checkPod("after uninstall from the created namespace")
	c.checkUninstalled(t)
	c.kubectl(t, "delete", "namespace", "gpu-system")

	// The spec stays on disk for containers that restart.
	c.exitContainer(t, "stays")
	await(t, "a new container", func() (string, bool) {
		id := c.containerID(t, "stays")
		return id, id != container
	})
	c.awaitPhase(t, "stays", "Running")
	if now := c.gpusOf(t, "stays"); !slices.Equal(now, gpus) {
		t.Errorf("restarted container has GPUs %v, want %v", now, gpus)
	}
}

// helm runs a command block of docs/deploy.md.
func (c *cluster) helm(t *testing.T, section string, block int) {
	t.Helper()
	commands, err := docs.Blocks(t.Context(), "docs/deploy.md", section, "sh")
	if err != nil {
		t.Fatal(err)
	}
	c.sh(t, commands[block])
}

// sh runs shell commands on the node, in the checkout.
func (c *cluster) sh(t *testing.T, commands string) string {
	t.Helper()
	cmd := c.Box.Command(t.Context(), "sh", "-exc", "export "+path+"; cd "+checkout+"\n"+commands)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v\n%s", commands, err, out)
	}
	return string(out)
}

// agentPod returns the name of the agent's pod; during a rollout, the names of all its pods, separated by spaces.
func (c *cluster) agentPod(t *testing.T) string {
	t.Helper()
	return c.kubectl(t, "get", "pods", "--namespace", "gpucdi", "-l", "app.kubernetes.io/name=gpucdi", "-o", "jsonpath={.items[*].metadata.name}")
}

func (c *cluster) agentLog(t *testing.T) string {
	t.Helper()
	return c.kubectl(t, "logs", "--namespace", "gpucdi", "daemonset/gpucdi")
}

// syncConfig makes the kubelet sync the agent's pod, and with it the ConfigMap, which it otherwise does once a minute.
func (c *cluster) syncConfig(t *testing.T) {
	t.Helper()
	c.kubectl(t, "annotate", "pod", "--namespace", "gpucdi", c.agentPod(t), "--overwrite", "sync="+c.kubectl(t, "get", "configmap", "--namespace", "gpucdi", "gpucdi", "-o", "jsonpath={.metadata.resourceVersion}"))
}

// awaitSpec waits until the node's CDI spec contains part if present is set, or no longer contains it.
func (c *cluster) awaitSpec(t *testing.T, part string, present bool) {
	t.Helper()
	await(t, fmt.Sprintf("the CDI spec to contain %s: %t", part, present), func() (string, bool) {
		spec, err := os.ReadFile(c.Box.Path(filepath.Join(cdiDir, "gpucdi.dev-gpu.json")))
		return part, err == nil && strings.Contains(string(spec), part) == present
	})
}

// checkUninstalled checks that the chart's objects and labels are gone, that the CDI directory contains only the
// agent's specs, and that nothing listens on the sockets.
func (c *cluster) checkUninstalled(t *testing.T) {
	t.Helper()
	await(t, "no objects of the chart", func() (string, bool) { // Helm does not wait for the agent's pod
		left := c.kubectl(t, "get", "all,configmaps,serviceaccounts,roles,rolebindings,clusterroles,clusterrolebindings", "-A",
			"-l", "app.kubernetes.io/name=gpucdi", "-o", "name")
		return left, left == ""
	})
	c.requireNoLabels(t)
	left, err := filepath.Glob(c.Box.Path(cdiDir + "/*"))
	foreign := func(path string) bool { return !strings.HasPrefix(filepath.Base(path), "gpucdi.dev-gpu") }
	if err != nil || len(left) == 0 || slices.ContainsFunc(left, foreign) {
		t.Errorf("CDI directory contains %v, want the specs of the agent's GPUs: %v", left, err)
	}
	for _, socket := range c.sockets(t) {
		if conn, err := net.Dial("unix", socket); err == nil {
			_ = conn.Close()
			t.Errorf("%s is still served", socket)
		}
	}
}

// requireNoLabels checks that the node has none of the agent's labels.
func (c *cluster) requireNoLabels(t *testing.T) {
	t.Helper()
	for name := range c.labels(t) {
		if strings.HasPrefix(name, "nvidia.com/gpu.") || strings.HasPrefix(name, "nvidia.com/cuda.") {
			t.Errorf("the node still has the label %s", name)
		}
	}
}
