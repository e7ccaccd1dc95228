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

// cases run in this order, and each leaves all GPUs free. The field on contains the names of the tests that run a case.
// It is empty for cases that depend on the container runtime, which TestNode, TestContainerd17 and TestCRIO run. Those that
// depend only on CRI omit TestContainerd17: containerd 1.7 and 2 have the same one.
var cases = []struct {
	name string
	run  func(*testing.T, *cluster)
	on   string
}{
	{"docs/runtimes.md lists this node", documentedRuntime, ""},
	{"the commands of README work", readme, "TestNode"},
	{"a pod sees its two GPUs", twoGPUs, ""},
	{"a pod cannot open GPUs not allocated to it", deniedGPU, ""},
	{"a pod without a GPU request sees no GPU", noGPU, ""},
	{"pods get disjoint GPUs and wait for free ones", disjoint, "TestCRIO"},
	{"a container keeps its GPUs across its restart", containerRestart, ""},
	{"pods keep their GPUs across restarts of kubelet and agent", daemonRestarts, ""},
	{"pods start during a rollout of the agent", rollout, "TestCRIO"},
	{"the agent recovers from faults of its environment", recovery, "TestNode, TestCRIO"},
	{"a GPU fault is reported in Events, metrics and status", faultReporting, "TestContainerd17"},
	{"each alert fires during a fault and resolves after it", alertsFire, "TestContainerd17"},
	{"node labels describe the GPUs", nodeLabels, "TestNode"},
	{"node labels select config sections", sectionsByLabel, "TestNode"},
	{"pods select GPUs of different models", modelSelection, "TestNode"},
	{"rules assign GPUs to resources", resourceRules, "TestContainerd17"},
	{"a monitoring pod sees all GPUs while pods hold them", monitoringPods, "TestNode"},
	{"a cordoned GPU stays with its pod and is not allocated again", cordonedGPU, "TestNode"},
	{"the service account has minimal permissions", rbac, "TestContainerd17"},
	{"the agent drops capabilities", droppedCapabilities, ""},
	{"the doctor checks a GPU from inside a container", doctorLaunch, ""},
	{"the doctor on the node launches a container", doctorLaunchOnNode, ""},
	{"the doctor is killed while its container runs", interruptedLaunch, "TestCRIO"},
	{"only privileged containers open device nodes", privilegedOnly, ""},
	{"a removed GPU stays listed while a pod holds it", removedGPU, "TestNode, TestCRIO"},
	{"a GPU held by nerdctl is reported, and reserved on request", foreignContainer, ""},
	{"containers are checked through NRI", nriChecks, ""},
	{"GPUs become shared once no pod holds them", enableSharing, "TestNode, TestCRIO"},
	{"a pod sees its MIG device", migDevices, ""},
	{"metrics have the GPU memory and utilization of each pod", containerUsage, "TestNode, TestCRIO"},
	{"pods can allocate only their part of a GPU's memory", memoryLimits, "TestNode, TestCRIO"},
	{"memory limits hold while NRI is disabled", limitsWhileNRIDisabled, "TestNode, TestCRIO"},
	{"a pod in a user namespace sees its GPU or stays pending", userNamespace, ""},
	{"a claim gets GPUs", claimsOnOtherRuntimes, "TestCRIO, TestContainerd17"},
	{"Helm installs, upgrades and uninstalls the chart", helmLifecycle, "TestContainerd17"},
	{"an upgrade of the chart keeps pods running", chartUpgrade, "TestNode"},
}

func (c *cluster) runCases(t *testing.T) {
	t.Helper()
	defer c.keepsRuntimeConfig(t)()
	for _, tc := range cases {
		if tc.on != "" && !strings.Contains(tc.on, t.Name()) {
			continue
		}
		// The leftovers of a failed case would make the others fail, each after minutes.
		if !t.Run(tc.name, func(t *testing.T) { tc.run(t, c) }) {
			return
		}
	}
}

// keepsRuntimeConfig returns a function that checks that the configuration of the container runtime has not changed
// meanwhile.
func (c *cluster) keepsRuntimeConfig(t *testing.T) (check func()) {
	t.Helper()
	config := func() string {
		return c.sh(t, "find /etc/containerd /etc/crio -type f -exec sha256sum {} + 2>/dev/null || true")
	}
	before := config()
	return func() {
		t.Helper()
		if now := config(); now != before {
			t.Errorf("the configuration of the container runtime was\n%s\nand is\n%s", before, now)
		}
	}
}

func TestNode(t *testing.T) {
	inTurn(t, 11)
	startCluster(t, node.Config{}).runCases(t)
}

// documentedRuntime checks that docs/runtimes.md has a row for this node.
func documentedRuntime(t *testing.T, c *cluster) {
	t.Helper()
	name, version := c.runtime(t)
	kubelet := c.kubectl(t, "get", "node", node.Name, "-o", "jsonpath={.status.nodeInfo.kubeletVersion}")
	row := "\n| " + strings.Join([]string{name, version, kubelet}, " | ") + " |"
	text, err := os.ReadFile("../../docs/runtimes.md")
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(text), row) {
		t.Errorf("docs/runtimes.md has no row that starts with %s", row)
	}
}

// runtime returns the container runtime in the node's status.
func (c *cluster) runtime(t *testing.T) (name, version string) {
	t.Helper()
	await(t, "the version of the runtime, which is unknown after it restarts", func() (string, bool) {
		got := c.kubectl(t, "get", "node", node.Name, "-o", "jsonpath={.status.nodeInfo.containerRuntimeVersion}")
		name, version, _ = strings.Cut(got, "://")
		return got, version != "Unknown"
	})
	return name, version
}

// TestCRIO uses the image of a release; the other tests use the image of the Dockerfile.
func TestCRIO(t *testing.T) {
	inTurn(t, 10)
	c := startCluster(t, node.Config{
		Runtime: node.CRIO(), Images: []func(context.Context) (string, error){images.Release},
	})
	await(t, "the agent to detect CRI-O", func() (string, bool) {
		log := c.kubectl(t, "logs", "-n", "gpucdi", "daemonset/gpucdi")
		return log, strings.Contains(log, `msg="container runtime supports CDI"`) && strings.Contains(log, "name=cri-o version=1.34.0")
	})
	c.runCases(t)
}

// TestContainerd17 starts with the defaults of containerd 1.7, which disable CDI and NRI, and applies the remedy that the
// agent logs. It enables NRI after memory limits were checked without it. Kubernetes is the oldest release in which claims
// get GPUs. The kubelet's directory is that of k0s.
func TestContainerd17(t *testing.T) {
	inTurn(t, 8)
	c := startCluster(t, node.Config{
		Runtime: node.Containerd17(), Kubernetes: tools.Kube134, KubeletDir: "/var/lib/k0s/kubelet",
	})
	message := regexp.MustCompile(`reason="containerd v1\.7\.\d+ has CDI disabled: pods start without their GPUs; ` +
		`set (.*) under (\[.*\]) in (\S+) and restart containerd"`)
	var remedy []string
	await(t, "the agent to log that CDI is disabled", func() (string, bool) {
		log := c.kubectl(t, "logs", "-n", "gpucdi", "daemonset/gpucdi")
		remedy = message.FindStringSubmatch(strings.ReplaceAll(log, `\"`, `"`))
		return log, remedy != nil
	})
	c.awaitEvent(t, "Warning", "RuntimeWithoutCDI", remedy[1])
	c.run(t, "without", 2)
	c.awaitPhase(t, "without", "Running")
	if out := c.exec(t, "without", "ls /dev /usr/bin | grep nvidia || true"); out != "" {
		t.Errorf("pod sees %s while CDI is disabled", out)
	}
	c.checkPodWithoutGPU(t, "without")
	c.remove(t, "without")
	launched := c.inAgent(t, "doctor", "--launch")
	for _, line := range []string{": no such file or directory\n", "enable CDI in the container runtime", "fail  libraries      libcuda.so.1: cannot open"} {
		if !strings.Contains(launched, line) {
			t.Errorf("gpucdi doctor does not print %q while CDI is disabled:\n%s", line, launched)
		}
	}

	setting, section, file := remedy[1], remedy[2], c.Box.Path(remedy[3])
	config, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	c.rejectsWithoutCDI(t, file)
	c.configureRuntime(t, file, strings.Replace(string(config), section, section+"\n"+setting, 1)) // without NRI
	await(t, "the agent to log that CDI is enabled", func() (string, bool) {
		log := c.kubectl(t, "logs", "-n", "gpucdi", "daemonset/gpucdi")
		return log, strings.Contains(log, "container runtime supports CDI")
	})
	if t.Run("memory limits hold without NRI", func(t *testing.T) { limitsWithoutNRI(t, c) }) {
		c.enableNRI(t, file)
		c.runCases(t)
	}
}
