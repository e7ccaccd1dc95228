package dra

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	drapb "k8s.io/kubelet/pkg/apis/dra/v1"

	"github.com/gpucdi/gpucdi/allocator"
	"github.com/gpucdi/gpucdi/cluster"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	testDriver = "gpu.nvidia.com"
	testPool   = "node-1"
	testKind   = "gpucdi.dev/gpu"
)

// fakeClaims is a ClaimReader of claims by namespace/name.
type fakeClaims struct {
	mu     sync.Mutex
	claims map[string]cluster.Claim
	err    error                     // of each request
	before func(ctx context.Context) // called for each request; may be nil
}

func (f *fakeClaims) Claim(ctx context.Context, namespace, name string) (cluster.Claim, error) {
	f.mu.Lock()
	before, err := f.before, f.err
	claim, found := f.claims[namespace+"/"+name]
	f.mu.Unlock()
	if before != nil {
		before(ctx)
	}
	switch {
	case ctx.Err() != nil:
		return cluster.Claim{}, ctx.Err()
	case err != nil:
		return cluster.Claim{}, err
	case !found:
		return cluster.Claim{}, cluster.ErrNotFound
	}
	return claim, nil
}

// set replaces the claim default/name.
func (f *fakeClaims) set(name string, claim cluster.Claim) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.claims["default/"+name] = claim
}

func (f *fakeClaims) fail(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.err = err
}

// fakeGate grants a device to one claim at a time.
type fakeGate struct {
	mu      sync.Mutex
	claims  map[string]allocator.Claim
	err     error // of each Prepare
	changed chan struct{}
	called  func(method string) // called without the lock; may be nil
}

func newFakeGate() *fakeGate {
	return &fakeGate{claims: map[string]allocator.Claim{}, changed: make(chan struct{})}
}

func (g *fakeGate) Prepare(c allocator.Claim) error {
	g.report("Prepare")
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.err != nil {
		return g.err
	}
	if prepared, found := g.claims[c.UID]; found {
		prepared.Pods = c.Pods
		g.claims[c.UID] = prepared
		return nil
	}
	for _, other := range g.claims {
		for _, id := range c.Devices {
			if slices.Contains(other.Devices, id) {
				return fmt.Errorf("%w: %s is prepared for claim %s", allocator.ErrHeld, id, other)
			}
		}
	}
	g.claims[c.UID] = c
	return nil
}

func (g *fakeGate) Restore(c allocator.Claim) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.claims[c.UID] = c
}

func (g *fakeGate) Claims() []allocator.Claim {
	g.mu.Lock()
	defer g.mu.Unlock()
	return slices.Collect(maps.Values(g.claims))
}

func (g *fakeGate) Claim(uid string) (allocator.Claim, bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	c, found := g.claims[uid]
	return c, found
}

func (g *fakeGate) Unprepare(uid string) { g.end("Unprepare", uid) }

func (g *fakeGate) Cancel(uid string) { g.end("Cancel", uid) }

func (g *fakeGate) end(method, uid string) {
	g.report(method)
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.claims, uid)
	close(g.changed)
	g.changed = make(chan struct{})
}

func (g *fakeGate) Changed() <-chan struct{} {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.changed
}

func (g *fakeGate) report(method string) {
	if g.called != nil {
		g.called(method)
	}
}

// holders returns the UIDs of the prepared claims.
func (g *fakeGate) holders() []string {
	g.mu.Lock()
	defer g.mu.Unlock()
	return slices.Sorted(maps.Keys(g.claims))
}

// fakeObserver records the outcomes.
type fakeObserver struct {
	mu         sync.Mutex
	waiting    []Outcome
	prepared   []Outcome
	unprepared []Outcome
	registered int
}

func (o *fakeObserver) Registered() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.registered++
}

func (o *fakeObserver) Waiting(outcome Outcome) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.waiting = append(o.waiting, outcome)
}

func (o *fakeObserver) Prepared(outcome Outcome) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.prepared = append(o.prepared, outcome)
}

func (o *fakeObserver) Unprepared(outcome Outcome) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.unprepared = append(o.unprepared, outcome)
}

// node is a Driver with fake dependencies.
type node struct {
	*testing.T
	claims   *fakeClaims
	gate     *fakeGate
	observer *fakeObserver
	cfg      Config
	driver   *Driver
	service  *service
}

func newNode(t *testing.T) *node {
	t.Helper()
	n := &node{T: t, claims: &fakeClaims{claims: map[string]cluster.Claim{}}, observer: &fakeObserver{}}
	n.cfg = Config{
		Driver: testDriver, Pool: testPool, CDIKind: testKind, KubeletDir: t.TempDir(), StateDir: t.TempDir(),
		Claims: n.claims, Observer: n.observer,
	}
	n.restart()
	return n
}

// restart starts an agent with the state of the last one.
func (n *node) restart() {
	n.gate = newFakeGate()
	n.cfg.Gate = n.gate
	n.driver = New(n.cfg, testLog(n.T))
	n.service = &service{driver: n.driver, running: n.Context()}
}

// allocated returns a claim with GPUs that is reserved for one pod, pod-NAME.
func allocated(name string, gpus ...string) cluster.Claim {
	c := cluster.Claim{UID: "uid-" + name, Allocated: true, Consumers: []cluster.Consumer{{Resource: "pods", Name: "pod-" + name, UID: "pod-uid-" + name}}}
	for i, g := range gpus {
		c.Devices = append(c.Devices, cluster.ClaimDevice{Request: fmt.Sprintf("gpu-%d", i), Driver: testDriver, Pool: testPool, Device: "gpu-" + g})
	}
	return c
}

// add adds a claim to the API server.
func (n *node) add(name string, gpus ...string) { n.claims.set(name, allocated(name, gpus...)) }

func ref(name string) *drapb.Claim {
	return &drapb.Claim{Namespace: "default", Name: name, Uid: "uid-" + name}
}

// prepare prepares one claim and returns its CDI device names.
func (n *node) prepare(name string) ([]string, error) {
	n.Helper()
	response, err := n.service.NodePrepareResources(n.Context(), &drapb.NodePrepareResourcesRequest{Claims: []*drapb.Claim{ref(name)}})
	if err != nil {
		return nil, err
	}
	result, found := response.GetClaims()["uid-"+name]
	if !found || len(response.GetClaims()) != 1 {
		return nil, fmt.Errorf("the response has %v", response)
	}
	if result.GetError() != "" {
		return nil, errors.New(result.GetError())
	}
	var names []string
	for _, d := range result.GetDevices() {
		names = append(names, d.GetCdiDeviceIds()...)
	}
	return names, nil
}

// prepares prepares a claim and checks its CDI device names.
func (n *node) prepares(name string, gpus ...string) {
	n.Helper()
	var want []string
	for _, g := range gpus {
		want = append(want, testKind+"=GPU-"+g)
	}
	if got, err := n.prepare(name); err != nil || !slices.Equal(got, want) {
		n.Errorf("Prepare of %s: %v, error %v; want %v", name, got, err, want)
	}
}

func (n *node) unprepare(name string) error {
	n.Helper()
	response, err := n.service.NodeUnprepareResources(n.Context(), &drapb.NodeUnprepareResourcesRequest{Claims: []*drapb.Claim{ref(name)}})
	if err != nil {
		return err
	}
	result, found := response.GetClaims()["uid-"+name]
	if !found {
		return fmt.Errorf("the response has %v", response)
	}
	if result.GetError() != "" {
		return errors.New(result.GetError())
	}
	return nil
}

func (n *node) unprepares(name string) {
	n.Helper()
	if err := n.unprepare(name); err != nil {
		n.Errorf("Unprepare of %s: %v", name, err)
	}
}

// recorded checks the UIDs of the records, in memory and on disk.
func (n *node) recorded(want ...string) {
	n.Helper()
	if got := uids(n.driver.Records()); !slices.Equal(got, want) {
		n.Errorf("records of %v, want %v", got, want)
	}
	if got := n.onDisk(); !slices.Equal(got, want) {
		n.Errorf("records of %v on disk, want %v", got, want)
	}
}

// onDisk returns the UIDs of the records that another agent would find.
func (n *node) onDisk() []string {
	n.Helper()
	store, err := load(filepath.Join(n.cfg.StateDir, recordsDir))
	if err != nil {
		n.Error(err)
	}
	return uids(store.snapshot())
}

func uids(records []Record) (uids []string) {
	for _, r := range records {
		uids = append(uids, r.UID)
	}
	return uids
}

func (n *node) file(uid string) string {
	return filepath.Join(n.cfg.StateDir, recordsDir, uid+".json")
}

// readFile decodes a record's file.
func (n *node) readFile(uid string) (fields map[string]any) {
	n.Helper()
	data, err := os.ReadFile(n.file(uid))
	if err == nil {
		err = json.Unmarshal(data, &fields)
	}
	if err != nil {
		n.Fatal(err)
	}
	return fields
}

func (n *node) writeFile(uid, text string) {
	n.Helper()
	err := os.MkdirAll(filepath.Dir(n.file(uid)), 0o700)
	if err == nil {
		err = os.WriteFile(n.file(uid), []byte(text), 0o600)
	}
	if err != nil {
		n.Fatal(err)
	}
}

// testLog returns a logger that writes to the test's output.
func testLog(t *testing.T) *slog.Logger {
	return slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelDebug}))
}

// testTimeout bounds each wait of a test.
const testTimeout = 30 * time.Second

// receive waits for a value and fails the test if none arrives.
func receive[T any](t *testing.T, from <-chan T, what string) T {
	t.Helper()
	select {
	case v := <-from:
		return v
	case <-time.After(testTimeout):
		t.Fatalf("waiting for %s: timed out after %s", what, testTimeout)
	}
	panic("unreachable")
}

// eventually waits for a condition.
func eventually(t *testing.T, what string, condition func() bool) {
	t.Helper()
	for deadline := time.Now().Add(testTimeout); !condition(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("waiting for %s: timed out after %s", what, testTimeout)
		}
	}
}
