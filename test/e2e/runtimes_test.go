package e2e

import (
	"context"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/gpucdi/gpucdi/test/node"
	"github.com/gpucdi/gpucdi/test/node/images"
	"github.com/gpucdi/gpucdi/test/node/tools"
)

// cases run one after the other on a node of each runtime; each leaves it with all GPUs free.
var cases = []struct {
	name string
	run  func(*testing.T, *cluster)
}{
	{"docs/runtimes.md has this node", documented},
	{"what README says works", readme},
	{"a pod sees its two GPUs", twoGPUs},
	{"a pod cannot reach a GPU it was not given", deniedGPU},
	{"a pod that asks for none sees none", noGPU},
	{"pods get disjoint GPUs and wait their turn", disjoint},
	{"GPUs stay with a container that restarts", containerRestart},
	{"GPUs stay across restarts of kubelet and agent", daemonRestarts},
	{"pods start while the agent is replaced", rollout},
	{"what goes wrong beside the agent is put right", recoveries},
	{"what happens to a GPU is told where people look", told},
	{"the node's labels tell its GPUs", labelled},
	{"sections of the config apply by the node's labels", sectionsByLabel},
	{"pods choose among GPUs of different models", models},
	{"the agent may do no more than it does", leastRights},
	{"the agent gives up the rights that it does not need", fewRights},
	{"the doctor looks at a GPU from inside a container", launch},
	{"the doctor brings itself into a container", launchOnNode},
	{"nothing less than privileged opens the device nodes", whyPrivileged},
	{"a GPU that is pulled out stays listed while a pod holds it", pulledOut},
	{"GPUs that are shared from now on move when no pod holds them", moves},
	{"a pod sees its MIG device", migDevices},
	{"a pod in a user namespace sees its GPU, or is refused", userNamespace},
	{"a chart comes, changes and goes", helmLife},
}

func (c *cluster) runCases(t *testing.T) {
	for _, tc := range cases {
		// What a case that fails leaves behind would fail the others, each after minutes.
		if !t.Run(tc.name, func(t *testing.T) { tc.run(t, c) }) {
			return
		}
	}
}

func TestNode(t *testing.T) {
	t.Parallel()
	startCluster(t, node.Config{}).runCases(t)
}

// documented looks for the row of docs/runtimes.md that says what runs here.
func documented(t *testing.T, c *cluster) {
	t.Helper()
	name, version := c.runtime(t)
	kubelet := c.kubectl(t, "get", "node", node.Name, "-o", "jsonpath={.status.nodeInfo.kubeletVersion}")
	row := "\n| " + strings.Join([]string{name, version, kubelet}, " | ") + " |"
	text, err := os.ReadFile("../../docs/runtimes.md")
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(text), row) {
		t.Errorf("docs/runtimes.md has no row that begins %s", row)
	}
}

// runtime is what the node says that its container runtime is.
func (c *cluster) runtime(t *testing.T) (name, version string) {
	t.Helper()
	name, version, _ = strings.Cut(c.kubectl(t, "get", "node", node.Name, "-o", "jsonpath={.status.nodeInfo.containerRuntimeVersion}"), "://")
	return name, version
}

// TestContainerd17 starts with containerd as it comes, which has CDI off, and
// mends that as the agent says. It is an old node: its kubelet is two releases
// older than the control plane. And the kubelet is where k0s has it.
func TestContainerd17(t *testing.T) {
	t.Parallel()
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
		return log, strings.Contains(log, "container runtime supports CDI")
	})
	c.runCases(t)
}

// TestCRIO runs the image of the release, where the others run the Dockerfile's.
func TestCRIO(t *testing.T) {
	t.Parallel()
	c := startCluster(t, node.Config{
		Runtime: node.CRIO(), Images: []func(context.Context) (string, error){images.Release},
	})
	await(t, "the agent to know CRI-O", func() (string, bool) {
		log := c.kubectl(t, "logs", "-n", "gpucdi", "daemonset/gpucdi")
		return log, strings.Contains(log, `msg="container runtime supports CDI"`) && strings.Contains(log, "name=cri-o version=1.34.0")
	})
	c.runCases(t)
}
