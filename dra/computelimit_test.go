package dra

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/gpucdi/gpucdi/allocator"
)

// computeLimiter records the calls of a Driver.
type computeLimiter struct {
	calls  []string
	err    error // of both calls
	podErr error // of the check of pods
}

func newCeiledNode(t *testing.T) (*node, *computeLimiter) {
	t.Helper()
	n, l := newNode(t), &computeLimiter{}
	n.cfg.ClaimCDIKind = "gpucdi.dev/claim"
	n.cfg.LimitMemory = func(context.Context, string) error { return nil }
	n.cfg.MPSPercentage = func(_ string, amount allocator.Amount, ceiling int) int {
		if !amount.Partial() {
			return 0
		}
		return max(ceiling, int(amount.Cores))
	}
	n.cfg.CheckPods = func(context.Context, string, []Pod) error { return l.podErr }
	n.cfg.LimitCompute = func(_ context.Context, r Record) error {
		n.readFile(r.UID) // the record is on disk
		l.calls = append(l.calls, "limit "+r.Name)
		return l.err
	}
	n.cfg.ReleaseCompute = func(_ context.Context, r Record) error {
		l.calls = append(l.calls, "release "+r.Name)
		return l.err
	}
	n.restart()
	return n, l
}

func (l *computeLimiter) check(t *testing.T, want ...string) {
	t.Helper()
	if !slices.Equal(l.calls, want) {
		t.Errorf("calls %v, want %v", l.calls, want)
	}
	l.calls = nil
}

// A claim with a part of a GPU gets the CDI device of the claim, also from the next agent. A claim for a whole GPU does
// not.
func TestComputeLimit(t *testing.T) {
	n, l := newCeiledNode(t)
	n.addShare("a", "0", "25")
	n.add("b", "1")
	want := []string{testKind + "=GPU-0", "gpucdi.dev/claim=uid-a"}
	for range 2 {
		if got, err := n.prepare("a"); err != nil || !slices.Equal(got, want) {
			t.Errorf("CDI devices %v, error %v; want %v", got, err, want)
		}
		if got := n.driver.Records()[0].Devices[0].MPSPercentage; got != 25 {
			t.Errorf("percentage %d", got)
		}
		n.restart()
	}
	n.prepares("b", "1")
	l.check(t, "limit a", "limit a", "limit b")
	n.unprepares("a")
	n.unprepares("b")
	l.check(t, "release a", "release b")
}

func TestComputeLimitFails(t *testing.T) {
	n, l := newCeiledNode(t)
	n.addShare("a", "0", "25")
	l.err = errors.New("the MPS daemon does not run")
	if _, err := n.prepare("a"); err == nil || !strings.Contains(err.Error(), "compute time of the claim not limited: the MPS daemon does not run") {
		t.Errorf("error %v", err)
	}
	if got := n.observer.prepared[0].Refusal; got != RefusedDriver {
		t.Errorf("refusal %q", got)
	}
	n.recorded("uid-a")
	n.unprepares("a") // the agent retries the rest
	n.recorded()
}

// Without MPS, a claim that an earlier agent prepared with it is refused.
func TestComputeLimitWithoutMPS(t *testing.T) {
	n, _ := newCeiledNode(t)
	n.addShare("a", "0", "25")
	if _, err := n.prepare("a"); err != nil {
		t.Fatal(err)
	}
	n.cfg.MPSPercentage, n.cfg.CheckPods, n.cfg.LimitCompute, n.cfg.ReleaseCompute = nil, nil, nil, nil
	n.restart()
	if _, err := n.prepare("a"); err == nil || !strings.Contains(err.Error(), errComputeLimit.Error()) {
		t.Errorf("error %v", err)
	}
	n.unprepares("a")
}

// Each GPU has its own MPS server, and a program uses one.
func TestComputeLimitOfOneGPU(t *testing.T) {
	n, l := newCeiledNode(t)
	claim := allocated("a", "0", "1")
	for i := range claim.Devices {
		claim.Devices[i].ShareID = "share"
		claim.Devices[i].Consumed = map[string]string{capacityCores: "25", capacityMemory: "1Gi"}
	}
	n.claims.set("a", claim)
	if _, err := n.prepare("a"); err == nil || !strings.Contains(err.Error(), "requests gpu-0 and gpu-1 are for parts of two GPUs") {
		t.Errorf("error %v", err)
	}
	n.recorded()
	if holders := n.gate.holders(); len(holders) > 0 {
		t.Errorf("the gate has %v", holders)
	}
	l.check(t)
}

// A pod that could remove the limit gets nothing, and leaves nothing.
func TestComputeLimitOfRefusedPod(t *testing.T) {
	n, l := newCeiledNode(t)
	n.addShare("a", "0", "25")
	n.add("b", "1")
	l.podErr = errors.New("pod default/a may run as root")
	var calls []string
	n.gate.called = func(method string) { calls = append(calls, method) }
	if _, err := n.prepare("a"); err == nil || !strings.Contains(err.Error(), "pod default/a may run as root") {
		t.Errorf("error %v", err)
	}
	if want := []string{"Prepare", "Cancel"}; !slices.Equal(calls, want) {
		t.Errorf("calls of the gate: %q, want %q", calls, want)
	}
	if got := n.observer.prepared[0].Refusal; got != RefusedClaim {
		t.Errorf("refusal %q", got)
	}
	n.recorded()
	if holders := n.gate.holders(); len(holders) > 0 {
		t.Errorf("the gate has %v", holders)
	}
	l.check(t)
	n.prepares("b", "1") // a whole GPU has no limit that the pod could remove
	l.podErr = nil
	if _, err := n.prepare("a"); err != nil {
		t.Fatal(err)
	}
	l.podErr = errors.New("pod default/a may run as root")
	if _, err := n.prepare("a"); err == nil {
		t.Error("a pod that joined a prepared claim was not checked")
	}
	n.claims.fail(errors.New("no API server"))
	if _, err := n.prepare("a"); err != nil {
		t.Errorf("the pods were checked before: %v", err)
	}
}

// A restored claim keeps its devices if the next Prepare is refused, because its containers may use them.
func TestRefusalOfRestoredClaim(t *testing.T) {
	n, l := newCeiledNode(t)
	n.addShare("a", "0", "25")
	if _, err := n.prepare("a"); err != nil {
		t.Fatal(err)
	}
	restored, _ := n.gate.Claim("uid-a")
	if err := os.Remove(filepath.Join(n.cfg.StateDir, "claims", "uid-a.json")); err != nil {
		t.Fatal(err)
	}
	n.restart()
	n.gate.Restore(restored)
	l.podErr = errors.New("pod default/a may run as root")
	var calls []string
	n.gate.called = func(method string) { calls = append(calls, method) }
	if _, err := n.prepare("a"); err == nil {
		t.Error("not refused")
	}
	if want := []string{"Prepare"}; !slices.Equal(calls, want) {
		t.Errorf("calls of the gate: %q, want %q", calls, want)
	}
}

// A claim is not limited again while a call for it is in progress, such as one that ends it.
func TestIfPrepared(t *testing.T) {
	n, l := newCeiledNode(t)
	n.addShare("a", "0", "25")
	called := 0
	again := func(r Record) error {
		called++
		if r.UID != "uid-a" {
			t.Errorf("claim %s", r.UID)
		}
		return l.err
	}
	if err := n.driver.IfPrepared("uid-a", again); err != nil || called != 0 {
		t.Errorf("not prepared: %d calls, error %v", called, err)
	}
	if _, err := n.prepare("a"); err != nil {
		t.Fatal(err)
	}
	l.err = errors.New("failed")
	if err := n.driver.IfPrepared("uid-a", again); !errors.Is(err, l.err) || called != 1 {
		t.Errorf("prepared: %d calls, error %v", called, err)
	}
	if err := n.driver.locks.lock(t.Context(), "uid-a"); err != nil {
		t.Fatal(err)
	}
	if err := n.driver.IfPrepared("uid-a", again); err != nil || called != 1 {
		t.Errorf("during a call: %d calls, error %v", called, err)
	}
	n.driver.locks.unlock("uid-a")
}
