package devicemanager

import (
	"net/http"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/gpucdi/gpucdi/test/simdriver"
)

// both starts an agent and a kubelet on a node of 8 GPUs over two NUMA nodes.
func both(t *testing.T) (*node, *kubelet) {
	t.Helper()
	n := newNode(t, simdriver.H100x8())
	k := startKubelet(t, n.kubeletDir, 2)
	n.startAgent(t)
	k.counts(t, 8, 8)
	return n, k
}

func disjoint(t *testing.T, a, b []string) {
	t.Helper()
	for _, uuid := range a {
		if slices.Contains(b, uuid) {
			t.Errorf("%s is given out twice", uuid)
		}
	}
}

// The kubelet of this version disconnects a plugin that registers before it
// has seen the end of the earlier registration. Many restarts in a row hit the
// moments at which that could happen.
func TestManyKubeletRestarts(t *testing.T) {
	n, k := both(t)
	for range 10 {
		k = k.restart(t, 2)
		k.counts(t, 8, 8)
	}
	n.admitted(t, k, "new", 8)
}

// newSocket waits until the agent's only socket is another than before.
func (n *node) newSocket(t *testing.T, before string) {
	t.Helper()
	for start := time.Now(); ; time.Sleep(time.Millisecond) {
		if now := n.sockets(t); len(now) == 1 && now[0] != before {
			return
		}
		if time.Since(start) > patience {
			t.Fatalf("no new socket; there are %v", n.sockets(t))
		}
	}
}

func TestAgentRestart(t *testing.T) {
	for name, end := range map[string]func(*node, *testing.T){"terminated": (*node).stopAgent, "killed": (*node).killAgent} {
		t.Run(name, func(t *testing.T) {
			n, k := both(t)
			pod, before := n.admitted(t, k, "stays", 3)
			end(n, t)
			k.counts(t, 8, 0)
			// The node's pods go on without the agent, whatever the kubelet does.
			if now := n.started(t, k, pod); !slices.Equal(before, now) {
				t.Errorf("without the agent the container has %v, before %v", now, before)
			}
			n.startAgent(t)
			t.Logf("8 GPUs again %s after the agent's start", k.counts(t, 8, 8).Round(time.Millisecond))
			if sockets := n.sockets(t); len(sockets) != 1 {
				t.Errorf("the agent's sockets are %v, want one", sockets)
			}
			if after := n.started(t, k, pod); !slices.Equal(before, after) {
				t.Errorf("the restarted container has %v, before %v", after, before)
			}
			_, others := n.admitted(t, k, "new", 5)
			disjoint(t, before, others)
		})
	}
}

func TestBothRestart(t *testing.T) {
	n, k := both(t)
	pod, before := n.admitted(t, k, "stays", 3)
	n.stopAgent(t)
	k = k.restart(t, 2)
	if now := n.started(t, k, pod); !slices.Equal(before, now) {
		t.Errorf("without the agent the container has %v, before %v", now, before)
	}
	n.startAgent(t)
	k.counts(t, 8, 8)
	_, others := n.admitted(t, k, "new", 5)
	disjoint(t, before, others)
}

func TestKubeletComesLater(t *testing.T) {
	n := newNode(t, simdriver.H100x8())
	n.startAgent(t)
	for start := time.Now(); len(n.specs(t)) == 0; time.Sleep(time.Millisecond) {
		if time.Since(start) > patience {
			t.Fatal("the agent wrote no spec without a kubelet")
		}
	}
	k := startKubelet(t, n.kubeletDir, 2) // makes the directory, too
	t.Logf("8 GPUs %s after the kubelet's start", k.counts(t, 8, 8).Round(time.Millisecond))
	n.admitted(t, k, "new", 8)
}

// Without its CDI specs a pod could not start, so they must come back.
func TestSpecDeleted(t *testing.T) {
	n, k := both(t)
	pod, before := n.admitted(t, k, "stays", 3)
	want := n.specs(t)
	for path := range want {
		if err := os.Remove(path); err != nil {
			t.Fatal(err)
		}
	}
	deleted := time.Now()
	for !slices.Equal(keys(n.specs(t)), keys(want)) {
		if time.Since(deleted) > patience {
			t.Fatalf("the specs are %v, want %v", keys(n.specs(t)), keys(want))
		}
		time.Sleep(time.Millisecond)
	}
	k.counts(t, 8, 8)
	t.Logf("specs and 8 GPUs again %s after the specs were deleted", time.Since(deleted).Round(time.Millisecond))
	if after := n.started(t, k, pod); !slices.Equal(before, after) {
		t.Errorf("the container has %v, before %v", after, before)
	}
}

func keys(specs map[string]string) (paths []string) {
	for path := range specs {
		paths = append(paths, path)
	}
	slices.Sort(paths)
	return paths
}

// In a rollout the new agent is ready beside the old one, touches nothing, and takes over when that ends.
func TestRollout(t *testing.T) {
	t.Parallel() // it mostly waits
	n, k := both(t)
	pod, held := n.admitted(t, k, "stays", 3)
	n.configure(t, "resources: [{name: nvidia.com/gpu, replicas: 2}]")
	k.counts(t, 13, 10) // as the next agent has to know
	old := n.process
	n.address = freeAddress(t)
	n.startAgent(t)
	n.awaitGet(t, "/readyz", http.StatusOK)
	if s := n.status(t); !strings.Contains(s.Driver.Trouble, "another gpucdi agent") {
		t.Errorf("the new agent's status is %+v", s.Driver)
	}
	if sockets := n.sockets(t); len(sockets) != 1 {
		t.Errorf("beside each other the agents have the sockets %v", sockets)
	}
	k.counts(t, 13, 10)

	if err := old.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	var away, back time.Time
	for start := time.Now(); back.IsZero(); time.Sleep(100 * time.Microsecond) {
		_, gives := k.capacity()
		switch {
		case time.Since(start) > patience:
			t.Fatal("the new agent does not take over")
		case quantity(gives) == 0 && away.IsZero():
			away = time.Now()
		case quantity(gives) == 10 && !away.IsZero():
			back = time.Now()
		}
	}
	t.Logf("the kubelet had no healthy GPU for %s", back.Sub(away).Round(time.Millisecond))
	if err := old.Wait(); err != nil {
		t.Errorf("the old agent's end: %v", err)
	}
	if now := n.started(t, k, pod); !slices.Equal(now, held) {
		t.Errorf("the pod has %v, before %v", now, held)
	}
	k.forget(pod)
	k.counts(t, 16, 16)
}
