package dramanager

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/gpucdi/gpucdi/test/node/tools"
)

// plugin is the path of the plugin: a program that runs a dra.Driver (dra/testdata/plugin).
var plugin string

func TestMain(m *testing.M) {
	os.Exit(func() int {
		dir, err := os.MkdirTemp("", "dramanager")
		if err == nil {
			defer os.RemoveAll(dir)
			plugin = filepath.Join(dir, "plugin")
			err = buildPlugin(context.Background(), plugin)
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		return m.Run()
	}())
}

func buildPlugin(ctx context.Context, path string) error {
	module, err := tools.ModuleDir(ctx)
	if err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, "go", "build", "-race", "-o", path, "./dra/testdata/plugin")
	cmd.Dir = filepath.Dir(module)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("building the plugin: %w\n%s", err, out)
	}
	return nil
}

// node is a node with a kubelet, the plugin and claims.
type node struct {
	*testing.T
	dir, state, claims string // directories of the kubelet, of the plugin's state and of its claims
	logs               string // file with the plugin's log
	api                *fake.Clientset
	kubelet            *kubelet
	input              io.WriteCloser // of the plugin
	process            *exec.Cmd
}

// newNode starts the plugin and a kubelet.
func newNode(t *testing.T, claims ...*resourceapi.ResourceClaim) *node {
	t.Helper()
	n := &node{T: t, dir: t.TempDir(), state: t.TempDir(), claims: t.TempDir(), logs: filepath.Join(t.TempDir(), "log"), api: fake.NewClientset()}
	for _, c := range claims {
		n.add(c)
	}
	n.startPlugin()
	n.kubelet = startKubelet(t, n.dir, n.api)
	return n
}

// add adds a claim to the API server and to the plugin's directory of claims.
func (n *node) add(c *resourceapi.ResourceClaim) {
	n.Helper()
	if _, err := n.api.ResourceV1().ResourceClaims(c.Namespace).Create(n.Context(), c, metav1.CreateOptions{}); err != nil {
		n.Fatal(err)
	}
	data, err := json.Marshal(c)
	if err == nil {
		err = os.WriteFile(filepath.Join(n.claims, c.Namespace+"_"+c.Name+".json"), data, 0o600)
	}
	if err != nil {
		n.Fatal(err)
	}
}

func (n *node) startPlugin() {
	n.Helper()
	n.process = exec.Command(plugin, n.dir, n.state, n.claims)
	logs, err := os.OpenFile(n.logs, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		n.Fatal(err)
	}
	n.Cleanup(func() { _ = logs.Close() })
	n.process.Stdout, n.process.Stderr = n.Output(), io.MultiWriter(n.Output(), logs)
	if n.input, err = n.process.StdinPipe(); err != nil {
		n.Fatal(err)
	}
	if err := n.process.Start(); err != nil {
		n.Fatal(err)
	}
	n.Cleanup(n.killPlugin)
}

// killPlugin kills the plugin, which leaves its sockets behind.
func (n *node) killPlugin() {
	_ = n.process.Process.Kill()
	_ = n.process.Wait()
}

// stopPlugin ends the input of the plugin, which shuts it down.
func (n *node) stopPlugin() {
	n.Helper()
	_ = n.input.Close()
	if err := n.process.Wait(); err != nil {
		n.Errorf("the plugin exited: %v", err)
	}
}

// setHealth makes the plugin report a fault of a GPU to the kubelet, or a healthy GPU if fault is empty.
func (n *node) setHealth(id, fault string) {
	n.Helper()
	if _, err := fmt.Fprintln(n.input, strings.TrimSpace(id+" "+fault)); err != nil {
		n.Fatal(err)
	}
}

// awaitLog waits until the plugin's log contains text.
func (n *node) awaitLog(text string) {
	n.Helper()
	n.kubelet.eventually("the log of the plugin", func() error {
		logs, err := os.ReadFile(n.logs)
		if err == nil && !strings.Contains(string(logs), text) {
			err = fmt.Errorf("it lacks %s", text)
		}
		return err
	})
}

// awaitRecords waits until the state directory has exactly the records of the claims in want.
func (n *node) awaitRecords(want ...string) {
	n.Helper()
	n.kubelet.eventually("the records", func() error {
		entries, err := os.ReadDir(filepath.Join(n.state, "claims"))
		if err != nil && !os.IsNotExist(err) {
			return err
		}
		var got []string
		for _, e := range entries {
			got = append(got, strings.TrimSuffix(strings.TrimPrefix(e.Name(), "uid-of-claim-"), ".json"))
		}
		if !slices.Equal(got, want) {
			return fmt.Errorf("records of %v, want %v", got, want)
		}
		return nil
	})
}

// A pod gets the CDI device of its GPU. The claim is unprepared with the last pod that uses it.
func TestClaim(t *testing.T) {
	t.Parallel()
	first, second := newPod("first", "a"), newPod("second", "a")
	n := newNode(t, newClaim("a", "gpu-0", first, second))
	n.kubelet.checkPrepare(first, "gpucdi.dev/gpu=GPU-0")
	n.awaitRecords("a")
	n.kubelet.checkPrepare(second, "gpucdi.dev/gpu=GPU-0")
	n.kubelet.unprepare(first)
	n.awaitRecords("a")
	n.kubelet.unprepare(second)
	n.awaitRecords()
}

// A kubelet that restarts while a pod runs keeps the pod's devices, and prepares its claim again for the next sandbox.
func TestKubeletRestart(t *testing.T) {
	t.Parallel()
	pod, later := newPod("pod", "a"), newPod("later", "b")
	n := newNode(t, newClaim("a", "gpu-0", pod), newClaim("b", "gpu-1", later))
	n.kubelet.checkPrepare(pod, "gpucdi.dev/gpu=GPU-0")
	for range 2 {
		n.kubelet.stop()
		n.kubelet = startKubelet(t, n.dir, n.api)
		if got := n.kubelet.devices(pod); !slices.Contains(got, "gpucdi.dev/gpu=GPU-0") {
			t.Errorf("the next container start has %v", got)
		}
		n.kubelet.checkPrepare(later, "gpucdi.dev/gpu=GPU-1")
		n.awaitRecords("a", "b")
		n.kubelet.unprepare(later)
	}
	// Kubelet 1.36 adds the device again when it prepares a claim again.
	if got := slices.Compact(n.kubelet.prepare(pod)); !slices.Equal(got, []string{"gpucdi.dev/gpu=GPU-0"}) {
		t.Errorf("the next sandbox has %v", got)
	}
	n.kubelet.unprepare(pod)
	n.awaitRecords()
}

// Claims stay prepared, and others can be prepared, after the plugin is killed or stopped while a pod runs.
func TestPluginRestart(t *testing.T) {
	t.Parallel()
	pod, later := newPod("pod", "a"), newPod("later", "b")
	n := newNode(t, newClaim("a", "gpu-0", pod), newClaim("b", "gpu-1", later))
	n.kubelet.checkPrepare(pod, "gpucdi.dev/gpu=GPU-0")
	for _, end := range []func(){n.killPlugin, n.stopPlugin, n.killPlugin} {
		end()
		n.startPlugin()
		n.kubelet.checkPrepare(later, "gpucdi.dev/gpu=GPU-1")
		n.awaitRecords("a", "b")
		n.kubelet.unprepare(later)
	}
	n.killPlugin()
	n.startPlugin()
	n.kubelet.unprepare(pod)
	n.awaitRecords()
}

// Preparation waits while another claim holds the GPU. Claims for other GPUs do not wait.
func TestWait(t *testing.T) {
	t.Parallel()
	first, second, other := newPod("first", "a"), newPod("second", "b"), newPod("other", "c")
	n := newNode(t, newClaim("a", "gpu-0", first), newClaim("b", "gpu-0", second), newClaim("c", "gpu-1", other))
	n.kubelet.checkPrepare(first, "gpucdi.dev/gpu=GPU-0")
	prepared := make(chan error, 1)
	go func() { prepared <- n.kubelet.PrepareResources(t.Context(), second) }()
	n.awaitLog("claim waits for devices")
	n.kubelet.checkPrepare(other, "gpucdi.dev/gpu=GPU-1")
	n.awaitRecords("a", "c")
	select {
	case err := <-prepared:
		t.Fatalf("prepared while another claim holds the GPU, error %v", err)
	default:
	}
	n.kubelet.unprepare(first)
	select {
	case err := <-prepared:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(timeout):
		t.Fatal("not prepared after the GPU was released")
	}
	n.awaitRecords("b", "c")
}

// The kubelet's error for a refused claim has the reason.
func TestRefused(t *testing.T) {
	t.Parallel()
	pod, ready := newPod("pod", "a"), newPod("ready", "b")
	n := newNode(t, newClaim("a", "nic-0", pod), newClaim("b", "gpu-0", ready))
	n.kubelet.checkPrepare(ready, "gpucdi.dev/gpu=GPU-0") // waits until the driver is registered
	if err := n.kubelet.PrepareResources(t.Context(), pod); err == nil || !strings.Contains(err.Error(), `device "nic-0"`) {
		t.Errorf("got error %v, want one that names the device", err)
	}
	n.awaitRecords("b")
	n.kubelet.unprepare(pod)
}

// The plugin replaces sockets that are removed while it and the kubelet run.
func TestSocketsRemoved(t *testing.T) {
	t.Parallel()
	pod := newPod("pod", "a")
	n := newNode(t, newClaim("a", "gpu-0", pod))
	for _, pattern := range []string{"plugins_registry/*.sock", "plugins/*/*.sock"} {
		n.kubelet.checkPrepare(pod, "gpucdi.dev/gpu=GPU-0")
		n.kubelet.unprepare(pod)
		sockets, err := filepath.Glob(filepath.Join(n.dir, pattern))
		if err != nil || len(sockets) != 1 {
			t.Fatalf("sockets %v, error %v", sockets, err)
		}
		if err := os.Remove(sockets[0]); err != nil {
			t.Fatal(err)
		}
		n.kubelet.eventually("another socket", func() error {
			after, err := filepath.Glob(filepath.Join(n.dir, pattern))
			if err != nil || len(after) != 1 || after[0] == sockets[0] {
				return fmt.Errorf("sockets %v, error %v", after, err)
			}
			return nil
		})
	}
	n.kubelet.checkPrepare(pod, "gpucdi.dev/gpu=GPU-0")
}

// The status of a pod has the health of its devices and the message of a fault.
func TestHealth(t *testing.T) {
	t.Parallel()
	pod := newPod("pod", "a")
	n := newNode(t, newClaim("a", "gpu-0", pod))
	n.kubelet.checkPrepare(pod, "gpucdi.dev/gpu=GPU-0")
	for _, fault := range []string{"", "XID 79: fell off the bus; reboot the node", ""} {
		want := v1.ResourceHealthStatusHealthy
		if fault != "" {
			want = v1.ResourceHealthStatusUnhealthy
		}
		n.setHealth("GPU-0", fault)
		n.kubelet.eventually("the health", func() error {
			got := n.kubelet.health(pod)
			if len(got) != 1 || got[0].Health != want || got[0].ResourceID != "gpucdi.dev/gpu=GPU-0" {
				return fmt.Errorf("health %+v, want %s", got, want)
			}
			if message := got[0].Message; (message == nil) != (fault == "") || message != nil && *message != fault {
				return fmt.Errorf("message %v, want %q", message, fault)
			}
			return nil
		})
	}
}
