package e2e

import (
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/gpucdi/gpucdi/test/docs"
	"github.com/gpucdi/gpucdi/test/node"
)

// helmLife does what docs/deploy.md says, with a pod that has two GPUs all the
// while: nothing of it may touch the pod.
func helmLife(t *testing.T, c *cluster) {
	c.kubectl(t, "delete", "-f", checkout+"/deploy/gpucdi.yaml", "--wait")
	c.helm(t, "Install", 0)
	c.awaitGPUs(t, "8")
	c.run(t, "stays", 2)
	c.awaitPhase(t, "stays", "Running")
	container, gpus := c.containerID(t, "stays"), c.gpusOf(t, "stays")
	same := func(after string) {
		t.Helper()
		if now := c.containerID(t, "stays"); now != container {
			t.Errorf("%s: the pod's container was replaced", after)
		}
		if now := c.gpusOf(t, "stays"); !slices.Equal(now, gpus) {
			t.Errorf("%s: the pod has %v, before %v", after, now, gpus)
		}
	}
	agent := c.agent(t)

	c.helm(t, "Change the config", 0)
	c.bringConfig(t)
	c.awaitOutput(t, "config changed", c.agentLog)
	if now := c.agent(t); now != agent {
		t.Errorf("a changed config replaced the agent %s by %s", agent, now)
	}
	same("after the upgrade")

	// A section that holds by a label, which the agent may only now ask for.
	c.kubectl(t, "label", "node", node.Name, "nvidia.com/device-plugin.config=display")
	c.sh(t, "helm upgrade gpucdi deploy/gpucdi --namespace gpucdi --reuse-values --set-json "+
		`'config.nodes=[{"section":"display","cdi":{"features":["compute","utility","display"]}}]'`)
	c.bringConfig(t)
	c.awaitSpec(t, "nvidia_drv.so", true)
	c.kubectl(t, "label", "node", node.Name, "nvidia.com/device-plugin.config-")
	c.awaitSpec(t, "nvidia_drv.so", false)
	same("after a label")

	c.sh(t, "helm upgrade gpucdi deploy/gpucdi --namespace gpucdi --reuse-values --set config.health.quietPeriod=often")
	c.bringConfig(t)
	c.awaitEvent(t, "Warning", "GPUConfigRefused", "often")
	same("after a wrong config")

	c.helm(t, "Change the config", 1)
	c.bringConfig(t)
	c.offersTheRest(t, "after the rollback", gpus, 6)
	same("after the rollback")

	c.helm(t, "The hook", 0)
	c.awaitSpec(t, "/opt/gpucdi/gpucdi-hook", true)
	c.run(t, "hooked", 1)
	c.awaitPhase(t, "hooked", "Running")
	if cache := c.in(t, "hooked", "ldconfig -p"); !strings.Contains(cache, "libcuda.so.1") {
		t.Errorf("with the hook, ldconfig -p prints\n%s", cache)
	}
	c.remove(t, "hooked")
	same("after the hook")

	c.helm(t, "Uninstall", 0)
	c.awaitGPUs(t, "0")
	same("after the end")
	c.leftNothing(t)

	// The spec that stays serves a container that restarts.
	c.end(t, "stays")
	await(t, "a new container", func() (string, bool) {
		id := c.containerID(t, "stays")
		return id, id != container
	})
	c.awaitPhase(t, "stays", "Running")
	if now := c.gpusOf(t, "stays"); !slices.Equal(now, gpus) {
		t.Errorf("the restarted container has %v, before %v", now, gpus)
	}
}

// helm runs one of the blocks of a section of docs/deploy.md.
func (c *cluster) helm(t *testing.T, section string, block int) {
	t.Helper()
	commands, err := docs.Blocks(t.Context(), "docs/deploy.md", section, "sh")
	if err != nil {
		t.Fatal(err)
	}
	c.sh(t, commands[block])
}

// sh runs commands of a document on the node, in the checkout.
func (c *cluster) sh(t *testing.T, commands string) string {
	t.Helper()
	cmd := c.Box.Command(t.Context(), "sh", "-exc", "export PATH="+programs+":$PATH; cd "+checkout+"\n"+commands)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v\n%s", commands, err, out)
	}
	return string(out)
}

// agent is the name of the agent's pod.
func (c *cluster) agent(t *testing.T) string {
	t.Helper()
	return c.kubectl(t, "get", "pods", "--namespace", "gpucdi", "-l", "app.kubernetes.io/name=gpucdi", "-o", "jsonpath={.items[*].metadata.name}")
}

func (c *cluster) agentLog(t *testing.T) string {
	t.Helper()
	return c.kubectl(t, "logs", "--namespace", "gpucdi", "daemonset/gpucdi")
}

// bringConfig makes the kubelet look at the agent's pod now, and with it at the
// ConfigMap, which it else does once a minute.
func (c *cluster) bringConfig(t *testing.T) {
	t.Helper()
	c.kubectl(t, "annotate", "pod", "--namespace", "gpucdi", c.agent(t), "--overwrite", "look=now-"+c.kubectl(t, "get", "configmap", "--namespace", "gpucdi", "gpucdi", "-o", "jsonpath={.metadata.resourceVersion}"))
}

func (c *cluster) awaitSpec(t *testing.T, part string, there bool) {
	t.Helper()
	await(t, "the spec to have "+part, func() (string, bool) {
		spec, err := os.ReadFile(c.Box.Path(filepath.Join(cdiDir, "gpucdi.dev-gpu.json")))
		return part, err == nil && strings.Contains(string(spec), part) == there
	})
}

// leftNothing says that of the chart there is nothing but the spec.
func (c *cluster) leftNothing(t *testing.T) {
	t.Helper()
	if left := c.kubectl(t, "get", "all,configmaps,serviceaccounts,roles,rolebindings,clusterroles,clusterrolebindings", "-A",
		"-l", "app.kubernetes.io/name=gpucdi", "-o", "name"); left != "" {
		t.Errorf("the cluster still has %s", left)
	}
	for name := range c.labels(t) {
		if strings.HasPrefix(name, "nvidia.com/gpu.") || strings.HasPrefix(name, "nvidia.com/cuda.") {
			t.Errorf("the node still has the label %s", name)
		}
	}
	if left, err := filepath.Glob(c.Box.Path(cdiDir + "/*")); err != nil || len(left) != 1 {
		t.Errorf("the node has %v", left)
	}
	for _, socket := range c.sockets(t) {
		if conn, err := net.Dial("unix", socket); err == nil {
			_ = conn.Close()
			t.Errorf("%s is served", socket)
		}
	}
}
