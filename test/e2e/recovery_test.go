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
	devicePlugins = "/var/lib/kubelet/device-plugins" // also if the kubelet has another root directory
	cdiDir        = "/run/cdi"                        // not below /var/run, an absolute symlink that leads out of the box
)

func daemonRestarts(t *testing.T, c *cluster) {
	c.run(t, "stays", 3)
	c.awaitPhase(t, "stays", "Running")
	container, gpus := c.containerID(t, "stays"), c.gpusOf(t, "stays")
	// The kubelet is restarted second: that resets its back-off, which would delay the container's second restart.
	for _, tc := range []struct {
		name    string
		restart func(*testing.T)
	}{{"agent", c.restartAgent}, {"kubelet", c.restartKubelet}} {
		start := time.Now()
		tc.restart(t)
		c.awaitRegistration(t, start)
		c.awaitGPUs(t, "8")
		if now := c.containerID(t, "stays"); now != container {
			t.Errorf("restart of the %s: container of pod stays was replaced", tc.name)
		}
		if now := c.gpusOf(t, "stays"); !slices.Equal(now, gpus) {
			t.Errorf("restart of the %s: pod stays has GPUs %v, want %v", tc.name, now, gpus)
		}
		c.allocateRest(t, tc.name, gpus, 5)
		// A container that restarts gets the devices in the kubelet's checkpoint.
		c.exitContainer(t, "stays")
		await(t, "a new container", func() (string, bool) {
			id := c.containerID(t, "stays")
			return id, id != container
		})
		c.awaitPhase(t, "stays", "Running")
		if now := c.gpusOf(t, "stays"); !slices.Equal(now, gpus) {
			t.Errorf("restart of the %s: restarted container has GPUs %v, want %v", tc.name, now, gpus)
		}
		container = c.containerID(t, "stays")
	}
}

// recovery removes files of the agent and restarts the kubelet while a pod runs.
func recovery(t *testing.T, c *cluster) {
	c.run(t, "bystander", 2)
	c.awaitPhase(t, "bystander", "Running")
	container, gpus := c.containerID(t, "bystander"), c.gpusOf(t, "bystander")
	for _, tc := range []struct {
		name  string
		fault func() (recovered func() (string, bool))
	}{
		{"kubelet restart", func() func() (string, bool) {
			before := c.sockets(t)
			if err := c.RestartKubelet(t.Context()); err != nil {
				t.Fatal(err)
			}
			return c.newSocket(before)
		}},
		{"deleted agent socket", func() func() (string, bool) {
			before := c.sockets(t)
			for _, socket := range before {
				if err := os.Remove(socket); err != nil {
					t.Fatal(err)
				}
			}
			return c.newSocket(before)
		}},
		{"deleted CDI spec", func() func() (string, bool) {
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
		{"removed CDI directory", func() func() (string, bool) {
			before := c.sockets(t)
			await(t, "the removal of a directory in which the agent restores its spec", func() (string, bool) {
				err := os.RemoveAll(c.Box.Path(cdiDir))
				return fmt.Sprint(err), err == nil
			})
			return func() (string, bool) { // the agent's mount keeps the removed directory, so its container restarts
				state, restarted := c.newSocket(before)()
				_, err := os.Stat(c.Box.Path(filepath.Join(cdiDir, "gpucdi.dev-gpu.json")))
				return fmt.Sprint(state, err), restarted && err == nil
			}
		}},
	} {
		start := time.Now()
		recovered := tc.fault()
		await(t, "recovery from "+tc.name, recovered)
		duration := time.Since(start)
		if tc.name != "deleted CDI spec" {
			c.awaitRegistration(t, start)
		}
		c.awaitGPUs(t, "8")
		t.Logf("%s: recovered after %s; node status has 8 GPUs after %s", tc.name,
			duration.Round(time.Millisecond), time.Since(start).Round(time.Millisecond))
		c.awaitKubelet(t)
		if now := c.containerID(t, "bystander"); now != container {
			t.Errorf("%s: container of pod bystander was replaced", tc.name)
		}
		c.allocateRest(t, tc.name, gpus, 6)
	}
}

// allocateRest starts a pod on all free GPUs: the node's status alone does not show that they can be allocated.
func (c *cluster) allocateRest(t *testing.T, after string, held []string, free int) {
	t.Helper()
	c.awaitRegistration(t, time.Time{})
	c.run(t, "rest", free)
	c.awaitPhase(t, "rest", "Running")
	got := c.gpusOf(t, "rest")
	if len(got) != free || slices.ContainsFunc(got, func(uuid string) bool { return slices.Contains(held, uuid) }) {
		t.Errorf("%s: pod rest has GPUs %v, want %d without %v", after, got, free, held)
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

// awaitKubelet waits until a kubelet that may just have started is ready and has restored the running pods.
func (c *cluster) awaitKubelet(t *testing.T) {
	t.Helper()
	if err := c.WaitReady(t.Context()); err != nil {
		t.Fatal(err)
	}
	// The node is Ready before the kubelet has restored its running pods.
	for pod := range strings.FieldsSeq(c.kubectl(t, "get", "pods", "-o", "name")) {
		await(t, "the kubelet to restore "+pod, func() (string, bool) {
			out, err := c.Kubectl(t.Context(), "exec", pod, "--", "true")
			return string(out), err == nil
		})
	}
}

// restartRuntime restarts the container runtime and waits until the kubelet can use it again.
func (c *cluster) restartRuntime(t *testing.T) {
	t.Helper()
	if err := c.RestartRuntime(t.Context()); err != nil {
		t.Fatal(err)
	}
	c.awaitExec(t)
}

// awaitExec waits until the kubelet can run commands in the agent's pod.
func (c *cluster) awaitExec(t *testing.T) {
	t.Helper()
	await(t, "exec in the agent's pod", func() (string, bool) {
		out, err := c.Kubectl(t.Context(), "exec", "--namespace", "gpucdi", "daemonset/gpucdi", "--", "gpucdi", "version")
		return fmt.Sprint(string(out), err), err == nil
	})
}

func (c *cluster) restartAgent(t *testing.T) {
	t.Helper()
	c.kubectl(t, "rollout", "restart", "-n", "gpucdi", "daemonset/gpucdi")
	c.awaitRollout(t)
}

// awaitRollout waits until the new agent has replaced the old one.
func (c *cluster) awaitRollout(t *testing.T) {
	t.Helper()
	c.rolloutStatus(t)
	await(t, "the old agent to be removed", func() (string, bool) {
		pods := c.kubectl(t, "get", "pods", "-n", "gpucdi", "-o", "name")
		return pods, strings.Count(pods, "pod/gpucdi-") == 1
	})
}

// rollout starts pods while the agent is replaced. While no agent is registered, the kubelet rejects pods that request
// GPUs.
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
		t.Errorf("%d of %d pods were rejected in %d rollouts, want at most %d", rejected, rollouts*pods, rollouts, rollouts)
	}
	c.awaitGPUs(t, "8")
}

func (c *cluster) sockets(t *testing.T) []string {
	t.Helper()
	found, err := filepath.Glob(c.Box.Path(filepath.Join(devicePlugins, "gpucdi-*.sock")))
	if err != nil || len(found) == 0 {
		t.Fatalf("agent has no sockets: %v, %v", found, err)
	}
	return found
}

// newSocket returns a check that the agent has replaced all sockets in before.
func (c *cluster) newSocket(before []string) func() (string, bool) {
	return func() (string, bool) {
		now, _ := filepath.Glob(c.Box.Path(filepath.Join(devicePlugins, "gpucdi-*.sock")))
		return filepath.Join(now...), len(now) > 0 && !slices.ContainsFunc(now, func(s string) bool { return slices.Contains(before, s) })
	}
}

// removedGPU removes a GPU that a pod holds and one that no pod holds, and later adds both again.
func removedGPU(t *testing.T, c *cluster) {
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
	// By the time the unallocated GPU is pruned, the allocated one could have been pruned, too.
	c.awaitState(t, free, "")
	if state := c.stateOf(t, held); state != "unhealthy" {
		t.Errorf("removed GPU that a pod holds is %q, want unhealthy", state)
	}
	if now := c.containerID(t, "holder"); now != container {
		t.Error("container of pod holder was replaced")
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
		t.Errorf("pod all has GPUs %v, want 8", got)
	}
}

// awaitRegistration waits until there is only one agent, and the kubelet has registered all its resources since the given
// time. Until then the node's status has the GPUs of the earlier registration, and pods that request GPUs are rejected.
func (c *cluster) awaitRegistration(t *testing.T, since time.Time) {
	t.Helper()
	await(t, "a registration with the kubelet", func() (string, bool) {
		now, err := c.nodeStatus(t)
		for _, r := range now.Kubelet.Resources {
			if r.Registered.Before(since) || r.Error != "" {
				return fmt.Sprint(now.Kubelet), false
			}
		}
		return fmt.Sprint(now.Kubelet, err), err == nil && len(now.Kubelet.Resources) > 0
	})
}

// nodeStatus is the part of gpucdi status -o json that the tests use.
type nodeStatus struct {
	Kubelet struct {
		Resources []struct {
			Registered time.Time
			Error      string
		}
	}
	Devices []struct {
		ID, Resource, State string
		Fault               *struct{ Code string }
	}
}

func (c *cluster) nodeStatus(t *testing.T) (now nodeStatus, err error) {
	t.Helper()
	// While there is also an earlier agent, this fails.
	out, err := c.Kubectl(t.Context(), "exec", "--namespace", "gpucdi", c.agentPod(t), "--", "gpucdi", "status", "-o", "json")
	if err != nil {
		return now, err
	}
	if err := json.Unmarshal(out, &now); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return now, nil
}

// stateOf returns the state of a device of nvidia.com/gpu according to gpucdi status: "available", "unhealthy",
// "draining", "waiting", or "" if the device is not listed. If there is no status, it returns the text of the error.
func (c *cluster) stateOf(t *testing.T, id string) string {
	t.Helper()
	now, err := c.nodeStatus(t)
	if err != nil {
		return err.Error()
	}
	for _, d := range now.Devices {
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
	await(t, fmt.Sprintf("state %q of %s", want, id), func() (string, bool) {
		state := c.stateOf(t, id)
		return state, state == want
	})
}

// enableSharing enables sharing while two pods hold a GPU each, one of them only for its init container. No GPU may be
// both allocated whole and shared: unallocated GPUs become shared immediately, the others when their pods have ended.
func enableSharing(t *testing.T, c *cluster) {
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
  - {name: main, image: %[1]s, imagePullPolicy: Never, command: %[2]s}
`, images.DebianName, untilEnd)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.remove(t, "init") })
	c.awaitPhase(t, "init", "Running")

	c.configure(t, "resources: [{name: nvidia.com/gpu, replicas: 2, rename: nvidia.com/gpu.shared}]\n")
	unallocated := c.awaitAllocatable(t, "nvidia.com/gpu.shared", "12")
	c.awaitAllocatable(t, "nvidia.com/gpu", "0")
	held := c.gpusOf(t, "app")
	if len(held) != 1 {
		t.Fatalf("pod app has GPUs %v, want one", held)
	}
	c.awaitState(t, held[0], "draining")
	c.remove(t, "app")
	app := c.awaitAllocatable(t, "nvidia.com/gpu.shared", "14")
	c.remove(t, "init")
	init := c.awaitAllocatable(t, "nvidia.com/gpu.shared", "16")
	t.Logf("unallocated GPUs were shared %s after the change, the others %s and %s after the end of their pods",
		unallocated.Round(time.Millisecond), app.Round(time.Millisecond), init.Round(time.Millisecond))
	c.configure(t, "")
	c.awaitGPUs(t, "8")
	if out := c.sh(t, blocksOf(t, sharingDocument, "Check the result", "sh")[0]); !strings.Contains(out, node.Name+"    8") {
		t.Errorf("the command of docs/sharing.md prints\n%s", out)
	}
}

// awaitAllocatable waits until the node's status has the given number of allocatable devices of a resource, and returns
// how long that took.
func (c *cluster) awaitAllocatable(t *testing.T, resource, want string) time.Duration {
	t.Helper()
	path := "jsonpath={.status.allocatable." + strings.ReplaceAll(resource, ".", `\.`) + "}"
	return await(t, want+" allocatable "+resource, func() (string, bool) {
		got, err := c.Kubectl(t.Context(), "get", "node", node.Name, "-o", path)
		return string(got), err == nil && string(got) == want
	})
}
