package devicemanager

import (
	"maps"
	"net/http"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/gpucdi/gpucdi/test/simdriver"
)

// startNode starts an agent and a kubelet on a node with 8 GPUs and two NUMA nodes.
func startNode(t *testing.T, config ...string) (*node, *kubelet) {
	t.Helper()
	n := newNode(t, simdriver.H100x8())
	n.configure(t, config...)
	k := startKubelet(t, n.kubeletDir, 2)
	n.startAgent(t)
	k.awaitGPUs(t, 8, 8)
	return n, k
}

// disjoint reports an error for each UUID that is in both lists.
func disjoint(t *testing.T, a, b []string) {
	t.Helper()
	for _, uuid := range a {
		if slices.Contains(b, uuid) {
			t.Errorf("%s is allocated twice", uuid)
		}
	}
}

// A kubelet up to 1.36 disconnects a plugin that registers before the kubelet has handled the end of the plugin's
// previous ListAndWatch stream. Repeated restarts cover that race.
func TestManyKubeletRestarts(t *testing.T) {
	t.Parallel()
	n, k := startNode(t)
	for range 10 {
		k = k.restart(t, 2)
		k.awaitGPUs(t, 8, 8)
	}
	n.admitPod(t, k, "new", 8)
}

// awaitNewSocket waits until the agent has a single socket, with a path other than before.
func (n *node) awaitNewSocket(t *testing.T, before string) {
	t.Helper()
	for start := time.Now(); ; time.Sleep(time.Millisecond) {
		if now := n.sockets(t); len(now) == 1 && now[0] != before {
			return
		}
		if time.Since(start) > timeout {
			t.Fatalf("no new socket; got %v", n.sockets(t))
		}
	}
}

func TestAgentRestart(t *testing.T) {
	t.Parallel()
	for name, stop := range map[string]func(*node, *testing.T){"terminated": (*node).stopAgent, "killed": (*node).killAgent} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n, k := startNode(t)
			pod, before := n.admitPod(t, k, "stays", 3)
			stop(n, t)
			k.awaitGPUs(t, 8, 0)
			// Containers restart without the agent.
			if now := n.startPod(t, k, pod); !slices.Equal(before, now) {
				t.Errorf("without the agent the container has %v, want %v", now, before)
			}
			n.startAgent(t)
			t.Logf("8 GPUs allocatable %s after the agent started", k.awaitGPUs(t, 8, 8).Round(time.Millisecond))
			if sockets := n.sockets(t); len(sockets) != 1 {
				t.Errorf("got sockets %v, want one", sockets)
			}
			if after := n.startPod(t, k, pod); !slices.Equal(before, after) {
				t.Errorf("the restarted container has %v, want %v", after, before)
			}
			_, others := n.admitPod(t, k, "new", 5)
			disjoint(t, before, others)
		})
	}
}

func TestAgentAndKubeletRestart(t *testing.T) {
	t.Parallel()
	n, k := startNode(t)
	pod, before := n.admitPod(t, k, "stays", 3)
	n.stopAgent(t)
	k = k.restart(t, 2)
	if now := n.startPod(t, k, pod); !slices.Equal(before, now) {
		t.Errorf("without the agent the container has %v, want %v", now, before)
	}
	n.startAgent(t)
	k.awaitGPUs(t, 8, 8)
	_, others := n.admitPod(t, k, "new", 5)
	disjoint(t, before, others)
}

func TestKubeletStartsLater(t *testing.T) {
	t.Parallel()
	n := newNode(t, simdriver.H100x8())
	n.startAgent(t)
	for start := time.Now(); len(n.specs(t)) == 0; time.Sleep(time.Millisecond) {
		if time.Since(start) > timeout {
			t.Fatal("no CDI spec written without a kubelet")
		}
	}
	k := startKubelet(t, n.kubeletDir, 2) // also creates the device plugin directory
	t.Logf("8 GPUs allocatable %s after the kubelet started", k.awaitGPUs(t, 8, 8).Round(time.Millisecond))
	n.admitPod(t, k, "new", 8)
}

// Containers cannot start without the CDI specs, so the agent must restore them.
func TestSpecDeleted(t *testing.T) {
	t.Parallel()
	n, k := startNode(t)
	pod, before := n.admitPod(t, k, "stays", 3)
	want := n.specs(t)
	for path := range want {
		if err := os.Remove(path); err != nil {
			t.Fatal(err)
		}
	}
	deleted := time.Now()
	for !slices.Equal(keys(n.specs(t)), keys(want)) {
		if time.Since(deleted) > timeout {
			t.Fatalf("got specs %v, want %v", keys(n.specs(t)), keys(want))
		}
		time.Sleep(time.Millisecond)
	}
	k.awaitGPUs(t, 8, 8)
	t.Logf("CDI specs restored and 8 GPUs allocatable after %s", time.Since(deleted).Round(time.Millisecond))
	if after := n.startPod(t, k, pod); !slices.Equal(before, after) {
		t.Errorf("the container has %v, want %v", after, before)
	}
}

func keys(specs map[string]string) (paths []string) {
	for path := range specs {
		paths = append(paths, path)
	}
	slices.Sort(paths)
	return paths
}

// During a rollout, while the old agent runs, the new one is ready but changes nothing. It takes over when the old one
// exits.
func TestRollout(t *testing.T) {
	t.Parallel()
	n, k := startNode(t)
	pod, held := n.admitPod(t, k, "stays", 3)
	n.configure(t, "resources: [{name: nvidia.com/gpu, replicas: 2}]")
	k.awaitGPUs(t, 13, 10) // 3 are draining, which the new agent must restore
	specs, sockets := n.specWrites(t), n.sockets(t)
	old := n.process
	n.address = newAddress()
	n.startAgent(t)
	n.awaitGet(t, "/readyz", http.StatusOK)
	if s := n.status(t); !strings.Contains(s.Driver.Error, "another gpucdi agent") {
		t.Errorf("the new agent's status is %+v", s.Driver)
	}
	if now := n.sockets(t); !slices.Equal(now, sockets) {
		t.Errorf("got sockets %v of two agents, want %v", now, sockets)
	}
	if now := n.specWrites(t); !maps.Equal(now, specs) {
		t.Errorf("the new agent changed the CDI specs from %v to %v", specs, now)
	}
	k.awaitGPUs(t, 13, 10)

	if err := old.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	var withdrawn, restored time.Time
	for start := time.Now(); restored.IsZero(); time.Sleep(100 * time.Microsecond) {
		_, allocatable := k.capacity()
		switch {
		case time.Since(start) > timeout:
			t.Fatal("the new agent does not take over")
		case quantity(allocatable) == 0 && withdrawn.IsZero():
			withdrawn = time.Now()
		case quantity(allocatable) == 10 && !withdrawn.IsZero():
			restored = time.Now()
		}
	}
	t.Logf("the kubelet had no healthy GPU for %s", restored.Sub(withdrawn).Round(time.Millisecond))
	if err := old.Wait(); err != nil {
		t.Errorf("the old agent exited: %v", err)
	}
	if now := n.startPod(t, k, pod); !slices.Equal(now, held) {
		t.Errorf("the pod has %v, want %v", now, held)
	}
	k.removePod(pod)
	k.awaitGPUs(t, 16, 16)
}

// specWrites returns the modification times of the CDI specs by path.
func (n *node) specWrites(t *testing.T) map[string]time.Time {
	t.Helper()
	times := map[string]time.Time{}
	for path := range n.specs(t) {
		info, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		times[path] = info.ModTime()
	}
	return times
}

// When a rollout supersedes another, two new agents wait for the same old one. When the old agent exits, one of them
// takes over, and the other keeps waiting. If both registered, a kubelet up to 1.36 would mark all devices unhealthy
// when one exits, and the other could not detect that.
func TestRolloutSuperseded(t *testing.T) {
	t.Parallel()
	n, k := startNode(t)
	first := n.process
	agents := map[string]*exec.Cmd{} // by address
	for range 2 {
		n.address = newAddress()
		n.startAgent(t)
		n.awaitGet(t, "/readyz", http.StatusOK)
		agents[n.address] = n.process
	}
	exit(t, first)
	var serving []string
	for start := time.Now(); len(serving) == 0; time.Sleep(20 * time.Millisecond) {
		if time.Since(start) > timeout {
			t.Fatal("neither agent takes over")
		}
		serving = n.serving(t, agents)
	}
	k.awaitGPUs(t, 8, 8)
	if serving = n.serving(t, agents); len(serving) != 1 {
		t.Fatalf("%d agents serve the node, want one", len(serving))
	}
	exit(t, agents[serving[0]])
	delete(agents, serving[0])
	for address, process := range agents {
		n.address, n.process = address, process
	}
	n.awaitStatus(t, func(s nodeStatus) bool { return s.Driver.Error == "" })
	k.awaitGPUs(t, 8, 8)
	n.admitPod(t, k, "new", 8)
}

// serving returns the addresses of the agents that do not wait for another agent. It changes n.address.
func (n *node) serving(t *testing.T, agents map[string]*exec.Cmd) (serving []string) {
	t.Helper()
	for n.address = range agents {
		if s := n.status(t); !strings.Contains(s.Driver.Error, "another gpucdi agent") {
			serving = append(serving, n.address)
		}
	}
	return serving
}

// exit terminates an agent and waits until it has exited.
func exit(t *testing.T, agent *exec.Cmd) {
	t.Helper()
	if err := agent.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := agent.Wait(); err != nil {
		t.Errorf("the agent exited: %v", err)
	}
}
