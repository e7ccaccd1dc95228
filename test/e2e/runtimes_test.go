package e2e

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/gpucdi/gpucdi/test/node"
	"github.com/gpucdi/gpucdi/test/node/tools"
)

// core is what has to hold on every runtime; TestNode has the rest.
func core(t *testing.T, c *cluster) {
	documented(t, c)
	t.Run("a pod sees its two GPUs", func(t *testing.T) { twoGPUs(t, c) })
	t.Run("a pod cannot reach a GPU it was not given", func(t *testing.T) { deniedGPU(t, c) })
	t.Run("a pod that asks for none sees none", func(t *testing.T) { noGPU(t, c) })
	t.Run("the agent knows which pod holds a GPU", func(t *testing.T) { knownHolder(t, c) })
	t.Run("GPUs stay with a container that restarts", func(t *testing.T) { containerRestart(t, c) })
	t.Run("the doctor looks at a GPU from inside a container", func(t *testing.T) { launch(t, c) })
}

// documented looks for the row of docs/runtimes.md that says what runs here.
func documented(t *testing.T, c *cluster) {
	t.Helper()
	info := c.kubectl(t, "get", "node", node.Name, "-o",
		"jsonpath={.status.nodeInfo.containerRuntimeVersion}://{.status.nodeInfo.kubeletVersion}")
	row := "\n| " + strings.Join(strings.Split(info, "://"), " | ") + " |"
	text, err := os.ReadFile("../../docs/runtimes.md")
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(text), row) {
		t.Errorf("docs/runtimes.md has no row that begins %s", row)
	}
}

// knownHolder looks for a pod in the agent's own status: the agent has found
// where the kubelet tells of its pods.
func knownHolder(t *testing.T, c *cluster) {
	c.run(t, "known", 1)
	c.awaitPhase(t, "known", "Running")
	await(t, "the agent to know who holds a GPU", func() (string, bool) {
		out := c.kubectl(t, "exec", "-n", "gpucdi", "daemonset/gpucdi", "--", "gpucdi", "status")
		return out, strings.Contains(out, "default/known")
	})
}

// TestContainerd17 starts with containerd as it comes, which has CDI off, and
// mends that as the agent says. It is an old node: its kubelet is two releases
// older than the control plane. And the kubelet is where k0s has it.
func TestContainerd17(t *testing.T) {
	c := startCluster(t, node.Config{
		Runtime: node.Containerd17(), Kubelet: tools.Kubelet134, KubeletDir: "/var/lib/k0s/kubelet",
	})
	advice := regexp.MustCompile(`msg="containerd v1\.7\.\d+ has CDI off: pods start without their GPUs; ` +
		`set (.*) under (\[.*\]) in (\S+) and restart containerd"`)
	var fix []string
	await(t, "the agent to say that CDI is off", func() (string, bool) {
		log := c.kubectl(t, "logs", "-n", "gpucdi", "daemonset/gpucdi")
		fix = advice.FindStringSubmatch(strings.ReplaceAll(log, `\"`, `"`))
		return log, fix != nil
	})
	c.awaitEvent(t, "Warning", "RuntimeWithoutCDI", fix[1])
	c.run(t, "without", 2)
	c.awaitPhase(t, "without", "Running")
	if out := c.in(t, "without", "ls /dev /usr/bin | grep nvidia || true"); out != "" {
		t.Errorf("with CDI off the pod sees %s", out)
	}
	c.remove(t, "without")
	launched := c.sh(t, "kubectl exec --namespace gpucdi daemonset/gpucdi -- gpucdi doctor --launch || true")
	for _, line := range []string{": no such file or directory\n", "turn its CDI on\n", "fail  its libraries  libcuda.so.1: cannot open"} {
		if !strings.Contains(launched, line) {
			t.Errorf("with CDI off the doctor does not say %q, but\n%s", line, launched)
		}
	}

	setting, section, file := fix[1], fix[2], c.Box.Path(fix[3])
	config, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	mended := strings.Replace(string(config), section, section+"\n"+setting, 1)
	if err := os.WriteFile(file, []byte(mended), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := c.RestartRuntime(t.Context()); err != nil {
		t.Fatal(err)
	}
	await(t, "the agent to say that CDI is on", func() (string, bool) {
		log := c.kubectl(t, "logs", "-n", "gpucdi", "daemonset/gpucdi")
		return log, strings.Contains(log, "does CDI")
	})
	core(t, c)
}

func TestCRIO(t *testing.T) {
	c := startCluster(t, node.Config{Runtime: node.CRIO()})
	await(t, "the agent to know CRI-O", func() (string, bool) {
		log := c.kubectl(t, "logs", "-n", "gpucdi", "daemonset/gpucdi")
		return log, strings.Contains(log, `msg="cri-o 1.34.0 does CDI"`)
	})
	core(t, c)
}
