package dra

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	drapb "k8s.io/kubelet/pkg/apis/dra/v1"

	"github.com/gpucdi/gpucdi/allocator"
	"github.com/gpucdi/gpucdi/cluster"
)

// limitedPods records the pods whose memory was limited.
type limitedPods struct {
	mu     sync.Mutex
	pods   []string
	before func(ctx context.Context, pod string) error // called without the lock; may be nil
}

func newLimitedNode(t *testing.T) (*node, *limitedPods) {
	t.Helper()
	n, l := newNode(t), &limitedPods{}
	n.cfg.LimitMemory = l.limit
	n.restart()
	return n, l
}

func (l *limitedPods) limit(ctx context.Context, pod string) error {
	if l.before != nil {
		if err := l.before(ctx, pod); err != nil {
			return err
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.pods = append(l.pods, pod)
	return nil
}

// check checks the pods, in the order of the calls.
func (l *limitedPods) check(t *testing.T, want ...string) {
	t.Helper()
	l.mu.Lock()
	defer l.mu.Unlock()
	if !slices.Equal(l.pods, want) {
		t.Errorf("limited pods %v, want %v", l.pods, want)
	}
}

// addShare adds a claim for cores and 1 GiB of a GPU to the API server.
func (n *node) addShare(name, gpu, cores string) {
	claim := allocated(name, gpu)
	claim.Devices[0].ShareID = "share-of-" + name
	claim.Devices[0].Consumed = map[string]string{capacityCores: cores, capacityMemory: "1Gi"}
	n.claims.set(name, claim)
}

// Each Prepare limits the memory of the claim's pod, once the record is on disk, even if an earlier agent was killed in
// between, the claim is already prepared, or the API server does not respond.
func TestLimitOfClaim(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, l := newLimitedNode(t)
		n.addShare("a", "0", "99")
		killed := errors.New("signal: killed")
		l.before = func(context.Context, string) error {
			n.readFile("uid-a")
			return killed
		}
		if _, err := n.prepare("a"); err == nil || !strings.Contains(err.Error(), "GPU memory of the pod not limited: signal: killed") {
			t.Errorf("error %v", err)
		}
		n.recorded("uid-a")
		n.restart()
		killed = nil
		n.prepares("a", "0")
		n.claims.fail(errors.New("connection refused"))
		n.restart()
		n.prepares("a", "0")
		n.unprepares("a")
		l.check(t, "pod-uid-a", "pod-uid-a")
		n.recorded()
	})
}

// Claims for whole GPUs, for replicas and for monitoring have no memory limit, and may be for several pods.
func TestClaimsWithoutLimit(t *testing.T) {
	n, l := newLimitedNode(t)
	l.before = func(context.Context, string) error { return errors.ErrUnsupported }
	n.add("whole", "0")
	n.addShare("all-cores", "1", "100")
	replica, monitor := allocated("replica", "2"), allocated("monitor", "3")
	replica.Devices[0].Consumed = map[string]string{capacityShares: "1"}
	monitor.Devices[0].AdminAccess = true
	monitor.Devices[0].Consumed = map[string]string{capacityCores: "50", capacityMemory: "1Gi"}
	n.claims.set("replica", replica)
	n.claims.set("monitor", monitor)
	for name, gpu := range map[string]string{"whole": "0", "all-cores": "1", "replica": "2", "monitor": "3"} {
		claim := n.claims.claims["default/"+name]
		claim.Consumers = append(claim.Consumers, cluster.Consumer{Resource: "pods", Name: "second", UID: "second"})
		n.claims.set(name, claim)
		n.prepares(name, gpu)
	}
	l.check(t)
}

// The kubelet calls Prepare for the first pod of a claim only, so a claim with a limit is for one pod.
func TestLimitIsForOnePod(t *testing.T) {
	n, l := newLimitedNode(t)
	n.addShare("a", "0", "25")
	one := n.claims.claims["default/a"]
	none, two := one, one
	none.Consumers = nil
	two.Consumers = append(slices.Clone(one.Consumers), cluster.Consumer{Resource: "pods", Name: "pod-b", UID: "pod-uid-b"})
	refuses := func(claim cluster.Claim, want string) {
		t.Helper()
		n.claims.set("a", claim)
		if _, err := n.prepare("a"); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want %q", err, want)
		}
	}
	refuses(none, "must be reserved for exactly one pod, got 0 []")
	refuses(two, `must be reserved for exactly one pod, got 2 ["pod-a" "pod-b"]; use a ResourceClaimTemplate`)
	n.recorded()
	n.claims.set("a", one)
	n.prepares("a", "0")
	refuses(two, "exactly one pod")
	l.check(t, "pod-uid-a")
}

// The limits of a pod are set for one claim after the other, so that the last call sets the sum of all claims.
func TestLimitsOfOnePodAreSequential(t *testing.T) {
	n, l := newLimitedNode(t)
	var calls []*drapb.Claim
	for _, name := range []string{"a", "b", "c", "d"} {
		n.addShare(name, name, "10")
		claim := n.claims.claims["default/"+name]
		claim.Consumers = []cluster.Consumer{{Resource: "pods", Name: "pod", UID: "pod-uid"}}
		n.claims.set(name, claim)
		calls = append(calls, ref(name))
	}
	var busy sync.Mutex
	l.before = func(context.Context, string) error {
		if !busy.TryLock() {
			t.Error("the limits of a pod are set concurrently")
			return nil
		}
		defer busy.Unlock()
		time.Sleep(time.Millisecond)
		return nil
	}
	response, err := n.service.NodePrepareResources(t.Context(), &drapb.NodePrepareResourcesRequest{Claims: calls})
	if err != nil || len(response.GetClaims()) != 4 {
		t.Errorf("response %v, error %v", response, err)
	}
	l.check(t, "pod-uid", "pod-uid", "pod-uid", "pod-uid")
}

// Lost limits of running pods are restored. If a pod was deleted by force, its successor uses the claim without a call
// to Prepare. The successor is limited, too, and recorded, so that its limit is restored even if the API server fails
// later.
func TestRestoreLimits(t *testing.T) {
	n, l := newLimitedNode(t)
	n.add("whole", "0")
	n.prepares("whole", "0")
	for name, gpu := range map[string]string{"a": "1", "b": "2"} {
		n.addShare(name, gpu, "25")
		n.prepares(name, gpu)
	}
	ended := ""
	l.before = func(_ context.Context, pod string) error {
		if pod == ended {
			return fmt.Errorf("finding the cgroup of pod %s: %w", pod, fs.ErrNotExist)
		}
		return nil
	}
	using := map[string][]string{"uid-a": {"pod-uid-a"}, "uid-b": {"pod-uid-b"}, "uid-whole": {"other"}}
	restores := func(want ...string) {
		t.Helper()
		l.pods = nil
		if err := n.driver.RestoreLimits(t.Context(), func(claim string) []string { return using[claim] }); err != nil {
			t.Error(err)
		}
		l.check(t, want...)
	}
	restores("pod-uid-a", "pod-uid-b")

	ended, using["uid-a"] = "pod-uid-a", []string{"next-uid"}
	claim := n.claims.claims["default/a"]
	claim.Consumers = []cluster.Consumer{{Resource: "pods", Name: "next", UID: "next-uid"}}
	n.claims.set("a", claim)
	restores("next-uid", "pod-uid-b")
	n.claims.fail(errors.New("connection refused"))
	n.restart()
	restores("next-uid", "pod-uid-b")
	l.pods = nil
	n.prepares("a", "1")
	l.check(t, "next-uid")
	if got := n.driver.Records()[0].Pods; len(got) != 2 || got[0].Name != "next" {
		t.Errorf("pods %v", got)
	}

	using["uid-a"] = []string{"unknown"}
	l.pods = nil
	err := n.driver.RestoreLimits(t.Context(), func(claim string) []string { return using[claim] })
	if err == nil || !strings.Contains(err.Error(), "claim default/a: reading the claim: connection refused") {
		t.Errorf("error %v", err)
	}
	l.check(t, "unknown", "next-uid", "pod-uid-b")

	// A pod that was deleted before its name was read is limited, too.
	n.claims.fail(nil)
	restores("unknown", "next-uid", "pod-uid-b")

	// So are the pods of a claim whose record is lost.
	n.cfg.Gate.Restore(allocator.Claim{UID: "lost", Pods: []string{"known"}, Amounts: map[string]allocator.Amount{"GPU-3": {Cores: 25}}})
	using["lost"] = []string{"joined"}
	restores("unknown", "next-uid", "pod-uid-b", "joined", "known")
}

// While the driver worker restarts, limits cannot be set. Prepare retries, since the kubelet repeats a failed call only
// after a minute.
func TestLimitIsRetried(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, l := newLimitedNode(t)
		n.addShare("a", "0", "25")
		start := time.Now()
		l.before = func(context.Context, string) error {
			if time.Since(start) < settingTimeout/2 {
				return errors.New("no driver is loaded")
			}
			return nil
		}
		n.prepares("a", "0")
		l.check(t, "pod-uid-a")
		l.before = func(ctx context.Context, _ string) error { <-ctx.Done(); return context.Cause(ctx) }
		start = time.Now()
		if _, err := n.prepare("a"); err == nil || !strings.Contains(err.Error(), "no response within 10s") {
			t.Errorf("error %v", err)
		}
		if took := time.Since(start); took != settingTimeout || n.observer.prepared[1].Refusal != RefusedDriver {
			t.Errorf("refused after %s: %+v", took, n.observer.prepared[1])
		}
		n.recorded("uid-a")
	})
}
