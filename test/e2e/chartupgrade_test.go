package e2e

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"

	"github.com/gpucdi/gpucdi/test/docs"
	"github.com/gpucdi/gpucdi/test/node/tools"
)

// earlierChart is a commit before values of the chart were renamed.
const earlierChart = "5615164641b045e586ac00d516ae5904bc457299"

// chartUpgrade upgrades from an earlier chart, then renames the chart's objects. Neither affects a running pod with two
// GPUs.
func chartUpgrade(t *testing.T, c *cluster) {
	uninstall, err := docs.Blocks(t.Context(), "README.md", "Uninstall", "sh")
	if err != nil {
		t.Fatal(err)
	}
	c.sh(t, uninstall[0])
	c.extractChart(t, earlierChart, "/earlier")
	c.sh(t, `kubectl create namespace gpucdi
kubectl label namespace gpucdi pod-security.kubernetes.io/enforce=privileged
helm install gpucdi /earlier/deploy/gpucdi --namespace gpucdi --wait`)
	c.awaitGPUs(t, "8")
	c.run(t, "stays", 2)
	c.awaitPhase(t, "stays", "Running")
	container, gpus, agent := c.containerID(t, "stays"), c.gpusOf(t, "stays"), c.agentPod(t)
	uid := func(daemonSet string) string {
		return c.kubectl(t, "get", "daemonset", "--namespace", "gpucdi", daemonSet, "-o", "jsonpath={.metadata.uid}")
	}
	before := uid("gpucdi")
	checkPod := func(after string) {
		t.Helper()
		if now := c.containerID(t, "stays"); now != container {
			t.Errorf("%s: container of pod stays was replaced", after)
		}
		if now := c.gpusOf(t, "stays"); !slices.Equal(now, gpus) {
			t.Errorf("%s: pod stays has GPUs %v, want %v", after, now, gpus)
		}
		c.allocateRest(t, after, gpus, 6)
	}

	c.helm(t, "Upgrade", 0)
	checkPod("after an upgrade with default values")
	c.sh(t, `helm upgrade gpucdi deploy/gpucdi --namespace gpucdi --wait --set-string 'nodeSelector.kubernetes\.io/os=linux' `+
		`--set podLabels.team=gpu,podAnnotations.a=b,networkPolicy.enabled=true `+
		`--set 'extraArgs[0]=--state-dir=/run/gpucdi,extraEnv[0].name=GOMEMLIMIT,extraEnv[0].value=100MiB'`)
	if uid("gpucdi") != before {
		t.Error("the upgrade replaced the DaemonSet")
	}
	if c.agentPod(t) == agent {
		t.Error("the upgrade did not replace the agent")
	}
	checkPod("after an upgrade with other values")

	c.sh(t, `helm upgrade gpucdi deploy/gpucdi --namespace gpucdi --reuse-values --wait `+
		`--set fullnameOverride=gpu-agent,serviceAccount.name=gpu-account,openshift.enabled=true`)
	c.kubectl(t, "rollout", "status", "--namespace", "gpucdi", "daemonset/gpu-agent", "--timeout", timeout.String())
	if left := c.kubectl(t, "get", "daemonset", "--namespace", "gpucdi", "-o", "name"); left != "daemonset.apps/gpu-agent" {
		t.Errorf("DaemonSets after the change of names: %s", left)
	}
	checkPod("after a change of all names")

	c.helm(t, "Uninstall", 0)
	c.awaitGPUs(t, "0")
	c.checkUninstalled(t)
}

// extractChart extracts deploy/gpucdi of a commit into a directory of the node.
func (c *cluster) extractChart(t *testing.T, commit, dir string) {
	t.Helper()
	module, err := tools.ModuleDir(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	archive := exec.Command("git", "-C", filepath.Dir(module), "archive", commit, "deploy/gpucdi")
	files, err := archive.Output()
	if err != nil {
		t.Fatalf("reading the chart of %s: %v; fetch the whole history of the repository", commit, err)
	}
	if err := os.MkdirAll(c.Box.Path(dir), 0o755); err != nil {
		t.Fatal(err)
	}
	extract := exec.Command("tar", "--extract", "--directory", c.Box.Path(dir))
	extract.Stdin = bytes.NewReader(files)
	if out, err := extract.CombinedOutput(); err != nil {
		t.Fatalf("extracting the chart: %v\n%s", err, out)
	}
}
