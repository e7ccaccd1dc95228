package e2e

import (
	"cmp"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gpucdi/gpucdi/test/node"
	"github.com/gpucdi/gpucdi/test/node/images"
	"github.com/gpucdi/gpucdi/test/simdriver"
)

const (
	devicePlugins = "/var/lib/kubelet/device-plugins"
	cdiDir        = "/run/cdi" // /var/run is an absolute link, which would lead out of the box
)

func daemonRestarts(t *testing.T, c *cluster) {
	c.run(t, "stays", 3)
	c.awaitPhase(t, "stays", "Running")
	container, gpus := c.containerID(t, "stays"), c.gpusOf(t, "stays")
	// The kubelet comes second: it then has forgotten that it would have to put the
	// container's second restart off.
	for _, tc := range []struct {
		name    string
		restart func(*testing.T)
	}{{"agent", c.restartAgent}, {"kubelet", c.restartKubelet}} {
		tc.restart(t)
		c.awaitGPUs(t, "8")
		if now := c.containerID(t, "stays"); now != container {
			t.Errorf("%s: the pod's container was replaced", tc.name)
		}
		if now := c.gpusOf(t, "stays"); !slices.Equal(now, gpus) {
			t.Errorf("%s: the pod has %v, before %v", tc.name, now, gpus)
		}
		c.offersTheRest(t, tc.name, gpus, 5)
		// A container that restarts gets what the kubelet remembers.
		c.end(t, "stays")
		await(t, "a new container", func() (string, bool) {
			id := c.containerID(t, "stays")
			return id, id != container
		})
		c.awaitPhase(t, "stays", "Running")
		if now := c.gpusOf(t, "stays"); !slices.Equal(now, gpus) {
			t.Errorf("%s: the restarted container has %v, before %v", tc.name, now, gpus)
		}
		container = c.containerID(t, "stays")
	}
}

// recoveries breaks what the agent has made, under a running pod.
func recoveries(t *testing.T, c *cluster) {
	c.run(t, "bystander", 2)
	c.awaitPhase(t, "bystander", "Running")
	container, gpus := c.containerID(t, "bystander"), c.gpusOf(t, "bystander")
	for _, tc := range []struct {
		name  string
		spoil func() (back func() (string, bool))
	}{
		{"kubelet restarted", func() func() (string, bool) {
			before := c.sockets(t)
			if err := c.RestartKubelet(t.Context()); err != nil {
				t.Fatal(err)
			}
			return c.newSocket(before)
		}},
		{"own socket deleted", func() func() (string, bool) {
			before := c.sockets(t)
			for _, socket := range before {
				if err := os.Remove(socket); err != nil {
					t.Fatal(err)
				}
			}
			return c.newSocket(before)
		}},
		{"/var/run/cdi emptied", func() func() (string, bool) {
			spec := c.Box.Path(filepath.Join(cdiDir, "gpucdi.dev-gpu.json"))
			want, err := os.ReadFile(spec)
			if err != nil {
				t.Fatal(err)
			}
			if err := os.Remove(spec); err != nil {
				t.Fatal(err)
			}
			return func() (string, bool) {
				now, err := os.ReadFile(spec)
				return string(now), err == nil && slices.Equal(now, want)
			}
		}},
	} {
		back := tc.spoil()
		spoiled := time.Now()
		await(t, tc.name+" to be put right", back)
		repaired := time.Since(spoiled)
		c.awaitGPUs(t, "8")
		t.Logf("%s: put right after %s; the node's status says 8 after %s", tc.name,
			repaired.Round(time.Millisecond), time.Since(spoiled).Round(time.Millisecond))
		c.awaitKubelet(t)
		if now := c.containerID(t, "bystander"); now != container {
			t.Errorf("%s: the running pod's container was replaced", tc.name)
		}
		c.offersTheRest(t, tc.name, gpus, 6)
	}
}

// offersTheRest starts a pod on all other GPUs: what the node's status says is
// worth nothing if the kubelet and the runtime cannot act on it.
func (c *cluster) offersTheRest(t *testing.T, after string, taken []string, free int) {
	t.Helper()
	c.run(t, "rest", free)
	c.awaitPhase(t, "rest", "Running")
	got := c.gpusOf(t, "rest")
	if len(got) != free || slices.ContainsFunc(got, func(uuid string) bool { return slices.Contains(taken, uuid) }) {
		t.Errorf("%s: the other pod has %v, taken are %v", after, got, taken)
	}
	c.remove(t, "rest")
}

func (c *cluster) restartKubelet(t *testing.T) {
	t.Helper()
	if err := c.RestartKubelet(t.Context()); err != nil {
		t.Fatal(err)
	}
	c.awaitKubelet(t)
}

// awaitKubelet waits until a kubelet that may just have started is at work.
func (c *cluster) awaitKubelet(t *testing.T) {
	t.Helper()
	if err := c.WaitReady(t.Context()); err != nil {
		t.Fatal(err)
	}
	// Ready comes before the kubelet has taken up the pods that run.
	for pod := range strings.FieldsSeq(c.kubectl(t, "get", "pods", "-o", "name")) {
		await(t, "the kubelet to know "+pod, func() (string, bool) {
			out, err := c.Kubectl(t.Context(), "exec", pod, "--", "true")
			return string(out), err == nil
		})
	}
}

func (c *cluster) restartAgent(t *testing.T) {
	t.Helper()
	c.kubectl(t, "rollout", "restart", "-n", "gpucdi", "daemonset/gpucdi")
	c.awaitRollout(t)
}

// awaitRollout waits until the new agent has taken over.
func (c *cluster) awaitRollout(t *testing.T) {
	t.Helper()
	c.kubectl(t, "rollout", "status", "-n", "gpucdi", "daemonset/gpucdi", "--timeout", patience.String())
	await(t, "the old agent to be gone", func() (string, bool) {
		pods := c.kubectl(t, "get", "pods", "-n", "gpucdi", "-o", "name")
		return pods, strings.Count(pods, "pod/gpucdi-") == 1
	})
}

// rollout starts pods while the agent is replaced. A pod that the kubelet admits in the moment without an
// agent is rejected.
func rollout(t *testing.T, c *cluster) {
	const rollouts, pods = 5, 6
	rejected := 0
	for range rollouts {
		c.kubectl(t, "rollout", "restart", "-n", "gpucdi", "daemonset/gpucdi")
		for i := range pods {
			c.run(t, fmt.Sprint("during-", i), 1)
			time.Sleep(500 * time.Millisecond)
		}
		c.awaitRollout(t)
		for i := range pods {
			name := fmt.Sprint("during-", i)
			await(t, name+" to be admitted or rejected", func() (string, bool) {
				phase := c.kubectl(t, "get", "pod", name, "-o", "jsonpath={.status.phase} {.status.reason}")
				if strings.HasPrefix(phase, "Failed") {
					rejected++
				}
				return phase, strings.HasPrefix(phase, "Running") || strings.HasPrefix(phase, "Failed")
			})
			c.remove(t, name)
		}
	}
	t.Logf("%d of %d pods were rejected in %d rollouts", rejected, rollouts*pods, rollouts)
	if rejected > rollouts {
		t.Errorf("%d pods of %d were rejected while the agent was replaced", rejected, rollouts*pods)
	}
	c.awaitGPUs(t, "8")
}

func (c *cluster) sockets(t *testing.T) []string {
	t.Helper()
	found, err := filepath.Glob(c.Box.Path(filepath.Join(devicePlugins, "gpucdi-*.sock")))
	if err != nil || len(found) == 0 {
		t.Fatalf("sockets of the agent: %v, %v", found, err)
	}
	return found
}

// newSocket waits for the agent to serve on a socket that was not there before.
func (c *cluster) newSocket(before []string) func() (string, bool) {
	return func() (string, bool) {
		now, _ := filepath.Glob(c.Box.Path(filepath.Join(devicePlugins, "gpucdi-*.sock")))
		return filepath.Join(now...), len(now) > 0 && !slices.ContainsFunc(now, func(s string) bool { return slices.Contains(before, s) })
	}
}

// pulledOut takes a GPU out of the node while a pod holds it, and puts it back.
func pulledOut(t *testing.T, c *cluster) {
	c.run(t, "holder", 1)
	c.awaitPhase(t, "holder", "Running")
	container, gpus := c.containerID(t, "holder"), c.gpusOf(t, "holder")
	held, free := gpus[0], c.driver.State().GPUs[0].UUID
	if free == held {
		free = c.driver.State().GPUs[1].UUID
	}
	var removed []simdriver.GPU
	for _, uuid := range []string{held, free} {
		gone, err := c.driver.Remove(uuid)
		if err != nil {
			t.Fatal(err)
		}
		removed = append(removed, gone)
	}
	c.awaitGPUs(t, "6")
	// One that nobody holds is released, which shows that the other could be by now.
	c.awaitState(t, free, "")
	if state := c.stateOf(t, held); state != "unhealthy" {
		t.Errorf("the GPU that a pod holds is %q", state)
	}
	if now := c.containerID(t, "holder"); now != container {
		t.Error("the pod's container was replaced")
	}
	c.remove(t, "holder")
	c.awaitState(t, held, "")
	for _, g := range removed {
		if err := c.driver.Add(g); err != nil {
			t.Fatal(err)
		}
	}
	c.awaitGPUs(t, "8")
	c.run(t, "all", 8)
	c.awaitPhase(t, "all", "Running")
	if got := c.gpusOf(t, "all"); len(got) != 8 {
		t.Errorf("the pod has %v", got)
	}
}

// stateOf returns how the agent tells of a device of nvidia.com/gpu: "available", "unhealthy", "draining",
// "waiting", or "" if it does not.
func (c *cluster) stateOf(t *testing.T, id string) string {
	t.Helper()
	out, err := c.Kubectl(t.Context(), "exec", "--namespace", "gpucdi", "daemonset/gpucdi", "--", "gpucdi", "status", "-o", "json")
	if err != nil {
		return err.Error()
	}
	var status struct {
		Devices []struct {
			ID, Resource, State string
			Fault               *struct{ Code string }
		}
	}
	if err := json.Unmarshal(out, &status); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	for _, d := range status.Devices {
		switch {
		case d.ID != id || d.Resource != "nvidia.com/gpu":
		case d.Fault != nil:
			return "unhealthy"
		default:
			return cmp.Or(d.State, "available")
		}
	}
	return ""
}

func (c *cluster) awaitState(t *testing.T, id, want string) {
	t.Helper()
	await(t, fmt.Sprintf("the state %q of %s", want, id), func() (string, bool) {
		state := c.stateOf(t, id)
		return state, state == want
	})
}

// moves shares GPUs that were not shared while pods hold some of them, one by an init container alone: no
// GPU is given out twice, those that nobody holds move, and the others when their pods have ended.
func moves(t *testing.T, c *cluster) {
	c.run(t, "app", 1)
	c.awaitPhase(t, "app", "Running")
	if err := c.Apply(t.Context(), fmt.Appendf(nil, `apiVersion: v1
kind: Pod
metadata: {name: init}
spec:
  terminationGracePeriodSeconds: 1
  initContainers:
  - {name: init, image: %[1]s, imagePullPolicy: Never, command: ["true"], resources: {limits: {nvidia.com/gpu: 1}}}
  containers:
  - {name: main, image: %[1]s, imagePullPolicy: Never, command: [sh, -c, "trap exit TERM; while :; do sleep 0.1; done"]}
`, images.DebianName)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.remove(t, "init") })
	c.awaitPhase(t, "init", "Running")

	c.configure(t, "resources: [{name: nvidia.com/gpu, replicas: 2, rename: nvidia.com/gpu.shared}]\n")
	moved := c.awaitAllocatable(t, "nvidia.com/gpu.shared", "12")
	c.awaitAllocatable(t, "nvidia.com/gpu", "0")
	held := c.gpusOf(t, "app")
	if len(held) != 1 {
		t.Fatalf("the pod has %v", held)
	}
	c.awaitState(t, held[0], "draining")
	c.remove(t, "app")
	app := c.awaitAllocatable(t, "nvidia.com/gpu.shared", "14")
	c.remove(t, "init")
	init := c.awaitAllocatable(t, "nvidia.com/gpu.shared", "16")
	t.Logf("GPUs that nobody held moved %s after the change, the others %s and %s after the end of their pods",
		moved.Round(time.Millisecond), app.Round(time.Millisecond), init.Round(time.Millisecond))
	c.configure(t, "")
	c.awaitGPUs(t, "8")
}

// awaitAllocatable waits until the node's status offers that many of a resource, and returns how long that
// took.
func (c *cluster) awaitAllocatable(t *testing.T, resource, want string) time.Duration {
	t.Helper()
	path := "jsonpath={.status.allocatable." + strings.ReplaceAll(resource, ".", `\.`) + "}"
	return await(t, want+" allocatable "+resource, func() (string, bool) {
		got, err := c.Kubectl(t.Context(), "get", "node", node.Name, "-o", path)
		return string(got), err == nil && string(got) == want
	})
}
