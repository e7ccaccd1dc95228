package e2e

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/gpucdi/gpucdi/test/node"
)

// core is what has to hold on every runtime; TestNode has the rest.
func core(t *testing.T, c *cluster) {
	t.Run("a pod sees its two GPUs", func(t *testing.T) { twoGPUs(t, c) })
	t.Run("a pod cannot reach a GPU it was not given", func(t *testing.T) { deniedGPU(t, c) })
	t.Run("a pod that asks for none sees none", func(t *testing.T) { noGPU(t, c) })
	t.Run("GPUs stay with a container that restarts", func(t *testing.T) { containerRestart(t, c) })
}

// TestContainerd17 starts with containerd as it comes, which has CDI off, and
// mends that as the agent says.
func TestContainerd17(t *testing.T) {
	c := startCluster(t, node.Containerd17())
	advice := regexp.MustCompile(`msg="containerd v1\.7\.\d+ has CDI off: pods start without their GPUs; ` +
		`set (.*) under (\[.*\]) in (\S+) and restart containerd"`)
	var fix []string
	await(t, "the agent to say that CDI is off", func() (string, bool) {
		log := c.kubectl(t, "logs", "-n", "gpucdi", "daemonset/gpucdi")
		fix = advice.FindStringSubmatch(strings.ReplaceAll(log, `\"`, `"`))
		return log, fix != nil
	})
	c.run(t, "without", 2)
	c.awaitPhase(t, "without", "Running")
	if out := c.in(t, "without", "ls /dev /usr/bin | grep nvidia || true"); out != "" {
		t.Errorf("with CDI off the pod sees %s", out)
	}
	c.remove(t, "without")

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
	c := startCluster(t, node.CRIO())
	await(t, "the agent to know CRI-O", func() (string, bool) {
		log := c.kubectl(t, "logs", "-n", "gpucdi", "daemonset/gpucdi")
		return log, strings.Contains(log, `msg="cri-o 1.34.0 does CDI"`)
	})
	core(t, c)
}
