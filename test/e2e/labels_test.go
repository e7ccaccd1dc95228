package e2e

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/gpucdi/gpucdi/test/node"
	"github.com/gpucdi/gpucdi/test/simdriver"
)

// nodeLabels checks the node's labels while its driver and GPUs change.
func nodeLabels(t *testing.T, c *cluster) {
	c.kubectl(t, "label", "node", node.Name, "nvidia.com/foreign=stays", "--overwrite")
	c.awaitLabels(t, map[string]string{"nvidia.com/gpu.count": "8", "nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3",
		"nvidia.com/gpu.mode": "compute", "nvidia.com/cuda.driver-version.full": c.driver.State().Version})
	fields := c.kubectl(t, "get", "node", node.Name, "--show-managed-fields", "-o", `jsonpath={.metadata.managedFields[?(@.manager=="gpucdi")]}`)
	for _, part := range []string{`"operation":"Apply"`, "f:nvidia.com/gpu.count"} {
		if !strings.Contains(fields, part) || strings.Contains(fields, "foreign") {
			t.Errorf("field manager gpucdi owns %s, want %s and no foreign labels", fields, part)
		}
	}

	version := c.driver.State().Version
	if err := c.driver.Upgrade("590.10.01"); err != nil {
		t.Fatal(err)
	}
	c.awaitLabels(t, map[string]string{"nvidia.com/cuda.driver-version.full": "590.10.01", "nvidia.com/cuda.driver-version.major": "590"})
	c.awaitEvent(t, "Normal", "GPUDriverChanged", "NVIDIA driver changed from "+version+" to 590.10.01")
	if err := c.driver.Upgrade(version); err != nil {
		t.Fatal(err)
	}
	c.awaitLabels(t, map[string]string{"nvidia.com/cuda.driver-version.full": version})

	var removed []simdriver.GPU
	for _, g := range c.driver.State().GPUs {
		gone, err := c.driver.Remove(g.UUID)
		if err != nil {
			t.Fatal(err)
		}
		removed = append(removed, gone)
	}
	await(t, "the labels to be removed with the GPUs", func() (string, bool) {
		labels := fmt.Sprint(c.labels(t))
		return labels, !strings.Contains(labels, "nvidia.com/gpu.") && !strings.Contains(labels, "nvidia.com/cuda.")
	})
	c.awaitLabels(t, map[string]string{"nvidia.com/foreign": "stays"})
	for _, g := range removed {
		if err := c.driver.Add(g); err != nil {
			t.Fatal(err)
		}
	}
	c.awaitLabels(t, map[string]string{"nvidia.com/gpu.count": "8"})
	c.awaitGPUs(t, "8")
}

func (c *cluster) labels(t *testing.T) (labels map[string]string) {
	t.Helper()
	out := c.kubectl(t, "get", "node", node.Name, "-o", "jsonpath={.metadata.labels}")
	if err := json.Unmarshal([]byte(out), &labels); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return labels
}

// awaitLabels waits until the node has these labels.
func (c *cluster) awaitLabels(t *testing.T, want map[string]string) {
	t.Helper()
	await(t, fmt.Sprint("labels ", want), func() (string, bool) {
		labels := c.labels(t)
		for name, value := range want {
			if labels[name] != value {
				return fmt.Sprint(labels), false
			}
		}
		return "", true
	})
}

// sectionsByLabel edits the config of the plain manifest with kubectl and selects a section by a label of the node.
// Status and doctor must report a forbidden watch and an invalid config.
func sectionsByLabel(t *testing.T, c *cluster) {
	configure := func(text string) { t.Helper(); c.configure(t, text) }
	grant := func(verbs string) {
		t.Helper()
		c.kubectl(t, "patch", "clusterrole", "gpucdi", "--type", "json", "--patch", `[{"op":"replace","path":"/rules/0/verbs","value":`+verbs+`}]`)
		c.restartAgent(t)
	}
	c.kubectl(t, "label", "node", node.Name, "nvidia.com/device-plugin.config=display")
	configure("nodes: [{section: display, cdi: {features: [compute, utility, display]}}]\n")
	c.awaitSpec(t, "nvidia_drv.so", true)
	if out := c.doctor(t); !strings.Contains(out, "pass  config         /etc/gpucdi/config.yaml is valid") {
		t.Errorf("gpucdi doctor prints\n%s", out)
	}

	grant(`["patch"]`)
	const refusal = "sections that select by label are not applied: watching node box: API server returned 403: nodes"
	c.awaitOutput(t, refusal, c.status)
	if out := c.doctor(t); !strings.Contains(out, "fail  config         the agent reports: "+refusal) {
		t.Errorf("gpucdi doctor prints\n%s", out)
	}
	grant(`["patch","watch"]`)
	c.awaitSpec(t, "nvidia_drv.so", true)

	configure("mig: {strategy: both}\n")
	c.awaitOutput(t, "keeping last known good", c.status)
	if out := c.doctor(t); !strings.Contains(out, "fail  config         ") || !strings.Contains(out, `mig.strategy: want none, single or mixed, got "both"`) {
		t.Errorf("gpucdi doctor prints\n%s", out)
	}
	configure("")
	c.kubectl(t, "label", "node", node.Name, "nvidia.com/device-plugin.config-")
	c.awaitSpec(t, "nvidia_drv.so", false)
	c.awaitGPUs(t, "8")
}

// configure replaces the agent's config in the ConfigMap and makes the kubelet sync it.
func (c *cluster) configure(t *testing.T, keys string) {
	t.Helper()
	text := "apiVersion: gpucdi.dev/v1\nkind: NodeConfig\n" + keys
	patch, err := json.Marshal(map[string]any{"data": map[string]string{"config.yaml": text}})
	if err != nil {
		t.Fatal(err)
	}
	c.kubectl(t, "patch", "configmap", "--namespace", "gpucdi", "gpucdi", "--type", "merge", "--patch", string(patch))
	c.syncConfig(t)
}
