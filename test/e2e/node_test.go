package e2e

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"runtime/debug"
	"strings"
	"testing"
	"time"

	"github.com/gpucdi/gpucdi/test/box"
	"github.com/gpucdi/gpucdi/test/node"
	"github.com/gpucdi/gpucdi/test/node/images"
	"github.com/gpucdi/gpucdi/test/node/tools"
	"github.com/gpucdi/gpucdi/test/product"
	"github.com/gpucdi/gpucdi/test/simdriver"
)

// timeout limits each wait. It is much longer than any wait on a slow machine, and than the 90 s after which the
// kubelet retries the preparation of a claim.
const timeout = 5 * time.Minute

// spread is the agent's --spread. Non-urgent requests wait for up to this time; the default is as long as timeout.
const spread = "10s"

// checkout is the directory on the node with the parts of the repository that README's commands need.
const checkout = "/src"

// programs are installed in addition to those of the node, each in a directory below /opt. On a node with CRI-O,
// Containerd runs as a second container runtime, like Docker's containerd. NVIDIAPlugin contains a monitoring program.
var programs = []tools.Tool{tools.Helm, tools.Nerdctl, tools.Containerd, tools.NVIDIAPlugin}

// path sets PATH to the programs of the node, then the additional ones.
const path = "PATH=$PATH:/opt/helm:/opt/nerdctl:/opt/containerd"

// TestMain trades memory for CPU time: kubectl runs in this process, and the garbage collector took a quarter of its CPU
// time.
func TestMain(m *testing.M) {
	debug.SetGCPercent(400)
	m.Run()
}

// cluster is a node in a box with eight GPUs and the agent deployed on it.
type cluster struct {
	*node.Node
	driver *simdriver.Driver
}

// startCluster starts a node with the agent deployed, as make demo does. It sets Box, Logs, Prepare and Stage of cfg,
// and Images unless they are set.
func startCluster(t *testing.T, cfg node.Config) *cluster {
	t.Helper()
	ctx := t.Context()
	if err := tools.InstallPackages(ctx); err != nil {
		t.Fatal(err)
	}
	module, err := tools.ModuleDir(ctx)
	if err != nil {
		t.Fatal(err)
	}
	// On disk, since container images are stored there; /tmp may be a tmpfs.
	dir, err := os.MkdirTemp("/var/tmp", "gpucdi-e2e-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	source := filepath.Dir(module)
	if product.RaceEnabled() {
		source = filepath.Join(dir, "source")
		if err := copyDeploy(source, filepath.Dir(module)); err != nil {
			t.Fatal(err)
		}
	}
	binds := map[string]string{filepath.Join(source, "deploy"): checkout + "/deploy"}
	for _, tool := range programs {
		built, err := tools.Build(ctx, tool)
		if err != nil {
			t.Fatal(err)
		}
		binds[built] = "/opt/" + string(tool)
	}
	c := &cluster{}
	cfg.Box = box.Config{Dir: filepath.Join(dir, "box"), Simulated: true, Binds: binds}
	cfg.Logs = filepath.Join(dir, "logs")
	cfg.Prepare = func(_ context.Context, b *box.Box) error {
		c.driver, err = simdriver.Install(b.Root(), simdriver.H100x8())
		return err
	}
	if cfg.Images == nil {
		cfg.Images = []func(context.Context) (string, error){images.Agent}
	}
	cfg.Stage = func(name string) func() {
		start := time.Now()
		return func() { t.Logf("%-20s %5.1f s", name, time.Since(start).Seconds()) }
	}
	c.Node, err = node.Start(ctx, cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := product.RaceReports(c.Box.Path("/dev")); err != nil {
			t.Error(err)
		}
		if t.Failed() {
			c.logDiagnostics(t)
		}
		if err := c.Close(); err != nil {
			t.Errorf("closing the node: %v", err)
		}
	})
	manifest, err := node.AgentManifest(source, spread)
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Apply(ctx, manifest); err != nil {
		t.Fatal(err)
	}
	c.awaitGPUs(t, "8")
	c.rolloutStatus(t) // the node's status may be updated before the pod's, and logs require the pod's
	return c
}

// memoryLimit is a memory limit of a program in deploy; the requests are smaller.
var memoryLimit = regexp.MustCompile(`memory: (128|256)Mi`)

// copyDeploy copies deploy of a checkout to another directory, and raises the memory limits of the programs, since the
// race detector multiplies their usage.
func copyDeploy(to, checkout string) error {
	deploy := filepath.Join(to, "deploy")
	if err := os.CopyFS(deploy, os.DirFS(filepath.Join(checkout, "deploy"))); err != nil {
		return err
	}
	for _, name := range []string{"gpucdi.yaml", "gpucdi/values.yaml", "gpucdi/templates/vcuda.yaml"} {
		path := filepath.Join(deploy, name)
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		if !memoryLimit.Match(text) {
			return fmt.Errorf("raising the memory limit in %s: not found", path)
		}
		if err := os.WriteFile(path, memoryLimit.ReplaceAll(text, []byte("memory: 1Gi")), 0o600); err != nil {
			return err
		}
	}
	return nil
}

func (c *cluster) rolloutStatus(t *testing.T) {
	t.Helper()
	c.kubectl(t, "rollout", "status", "-n", "gpucdi", "daemonset/gpucdi", "--timeout", timeout.String())
}

// setSpread applies the changes of node.AgentManifest to a DaemonSet that was deployed without them, which restarts the
// agent.
func (c *cluster) setSpread(t *testing.T) {
	t.Helper()
	start := time.Now()
	c.kubectl(t, "set", "env", "-n", "gpucdi", "daemonset/gpucdi", "GPUCDI_SPREAD="+spread)
	c.rolloutStatus(t)
	c.awaitRegistration(t, start.Truncate(time.Second))
	c.awaitGPUs(t, "8")
}

// logDiagnostics logs pods, events and the end of the agent's log.
func (c *cluster) logDiagnostics(t *testing.T) {
	ctx := context.Background()
	for _, args := range [][]string{
		{"get", "pods", "-A", "-o", "wide"},
		{"get", "events", "-A", "--sort-by=.lastTimestamp", "--field-selector", "reason!=Scheduled,reason!=Pulled,reason!=Created,reason!=Started,reason!=Killing"},
		{"logs", "-n", "gpucdi", "daemonset/gpucdi", "--tail=50"},
	} {
		out, err := c.Kubectl(ctx, args...)
		t.Logf("kubectl %s\n%s%v", strings.Join(args, " "), out, err)
	}
}

func (c *cluster) kubectl(t *testing.T, args ...string) string {
	t.Helper()
	out, err := c.Kubectl(t.Context(), args...)
	if err != nil {
		t.Fatalf("kubectl %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return strings.TrimSpace(string(out))
}

// await waits until check returns true, and returns how long that took. The string that check returns is the state for
// the failure message. The pause after a check is twice its duration, from 50 ms to 2 s, because some checks start
// programs.
func await(t *testing.T, what string, check func() (string, bool)) time.Duration {
	t.Helper()
	start := time.Now()
	for {
		checked := time.Now()
		state, ok := check()
		if ok {
			return time.Since(start)
		}
		if time.Since(start) > timeout {
			t.Fatalf("timed out after %s waiting for %s: last state %q", timeout, what, state)
		}
		time.Sleep(max(50*time.Millisecond, min(2*time.Since(checked), 2*time.Second)))
	}
}

// awaitGPUs waits until the node's status has the given number of allocatable GPUs.
func (c *cluster) awaitGPUs(t *testing.T, want string) {
	t.Helper()
	await(t, want+" allocatable GPUs", func() (string, bool) {
		got, err := c.Kubectl(t.Context(), "get", "node", node.Name, "-o", `jsonpath={.status.allocatable.nvidia\.com/gpu}`)
		return string(got), err == nil && string(got) == want
	})
}

// awaitPhase waits until a pod is in a phase, and for Running also until its container is ready. It fails immediately
// if the pod has failed, because that phase is final.
func (c *cluster) awaitPhase(t *testing.T, pod, phase string) {
	t.Helper()
	await(t, pod+" to be "+phase, func() (string, bool) {
		got, err := c.Kubectl(t.Context(), "get", "pod", pod, "-o",
			`jsonpath={.status.phase} {.status.containerStatuses[0].ready} {.status.reason} {.status.message}`)
		now, rest, _ := strings.Cut(string(got), " ")
		if err == nil && now == "Failed" && now != phase {
			t.Fatalf("waiting for %s to be %s: %s", pod, phase, got)
		}
		return string(got), err == nil && now == phase && (phase != "Running" || strings.HasPrefix(rest, "true "))
	})
}

// untilEnd is a command that exits when exitContainer writes to /tmp/end, or on SIGTERM. It does not poll, because each
// start of a process takes CPU time of the node.
const untilEnd = `[sh, -c, "trap 'exit 0' TERM; mkfifo /tmp/end; exec 3<>/tmp/end; read line <&3"]`

// lean are lines of the spec of a pod that needs neither a network of its own nor the API server. Without them, a pod takes
// less CPU time to start.
const lean = `  hostNetwork: true
  automountServiceAccountToken: false`

// run starts a pod that sleeps, with a number of GPUs and extra lines of its container's manifest, and removes it when
// the test ends.
func (c *cluster) run(t *testing.T, name string, gpus int, extra ...string) {
	t.Helper()
	c.start(t, name, gpus, extra...)
	t.Cleanup(func() { c.remove(t, name) })
}

// start is like run, but leaves the pod.
func (c *cluster) start(t *testing.T, name string, gpus int, extra ...string) {
	t.Helper()
	limits := ""
	if gpus > 0 {
		limits = fmt.Sprintf("\n    resources: {limits: {nvidia.com/gpu: %d}}", gpus)
	}
	manifest := fmt.Sprintf(`apiVersion: v1
kind: Pod
metadata: {name: %s}
spec:
  # With 0 the pod would be removed from the API before the kubelet has freed its GPUs.
  terminationGracePeriodSeconds: 1
%s
  containers:
  - name: main
    image: %s
    imagePullPolicy: Never
    command: %s%s%s
`, name, lean, images.DebianName, untilEnd, limits, strings.Join(append([]string{""}, extra...), "\n    "))
	if err := c.Apply(t.Context(), []byte(manifest)); err != nil {
		t.Fatal(err)
	}
}

func (c *cluster) remove(t *testing.T, pod string) {
	t.Helper()
	out, err := c.Kubectl(context.Background(), "delete", "pod", pod, "--ignore-not-found", "--timeout", timeout.String())
	if err != nil {
		t.Errorf("deleting %s: %v\n%s", pod, err, out)
	}
}

// exec runs a shell command in a pod and returns its stdout and stderr.
func (c *cluster) exec(t *testing.T, pod, command string) string {
	t.Helper()
	return c.kubectl(t, "exec", pod, "--", "sh", "-c", "{ "+command+"\n} 2>&1")
}

// exitContainer ends the container of a pod that runs untilEnd, as the pods of run do. The delay lets the exec return
// first; otherwise it would be killed with the container.
func (c *cluster) exitContainer(t *testing.T, pod string) {
	t.Helper()
	c.exec(t, pod, "(sleep 0.5; echo >/tmp/end) >/dev/null 2>&1 &")
}

// restartContainer ends the container of a pod as exitContainer does, and waits until the next one runs.
func (c *cluster) restartContainer(t *testing.T, pod string) {
	t.Helper()
	before := c.containerID(t, pod)
	c.exitContainer(t, pod)
	await(t, "another container of pod "+pod, func() (string, bool) {
		id := c.containerID(t, pod)
		return id, id != "" && id != before
	})
	c.awaitPhase(t, pod, "Running")
}

// gpusOf returns the UUIDs that nvidia-smi lists inside a pod.
func (c *cluster) gpusOf(t *testing.T, pod string) []string {
	t.Helper()
	var uuids []string
	for line := range strings.Lines(c.exec(t, pod, "nvidia-smi -L")) {
		_, uuid, found := strings.Cut(strings.TrimSpace(line), "(UUID: ")
		if !found {
			t.Fatalf("nvidia-smi -L in %s printed %q", pod, line)
		}
		uuids = append(uuids, strings.TrimSuffix(uuid, ")"))
	}
	return uuids
}

// containerID returns the ID of a pod's container, which changes with each restart of the container.
func (c *cluster) containerID(t *testing.T, pod string) string {
	t.Helper()
	return c.kubectl(t, "get", "pod", pod, "-o", "jsonpath={.status.containerStatuses[0].containerID}")
}
