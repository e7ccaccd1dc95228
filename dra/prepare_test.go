package dra

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	drapb "k8s.io/kubelet/pkg/apis/dra/v1"

	"github.com/gpucdi/gpucdi/allocator"
	"github.com/gpucdi/gpucdi/cluster"
	"github.com/gpucdi/gpucdi/gpu"
)

func TestPrepare(t *testing.T) {
	n := newNode(t)
	changes := 0
	n.cfg.Changed = func() { changes++ }
	n.restart()
	c := allocated("a", "0", "1")
	c.Devices[0].Request, c.Devices[0].ShareID = "first/second", "share"
	c.Devices = append(c.Devices,
		cluster.ClaimDevice{Request: "nic", Driver: "nic.example.com", Pool: "other", Device: "nic-0"},
		cluster.ClaimDevice{Request: "monitor", Driver: testDriver, Pool: testPool, Device: "gpu-2", AdminAccess: true})
	n.claims.set("a", c)
	response, err := n.service.NodePrepareResources(t.Context(), &drapb.NodePrepareResourcesRequest{Claims: []*drapb.Claim{ref("a"), ref("a")}})
	if err != nil {
		t.Fatal(err)
	}
	share := "share"
	want := &drapb.NodePrepareResourcesResponse{Claims: map[string]*drapb.NodePrepareResourceResponse{"uid-a": {Devices: []*drapb.Device{
		{RequestNames: []string{"first"}, PoolName: testPool, DeviceName: "gpu-0", CdiDeviceIds: []string{testKind + "=GPU-0"}, ShareId: &share},
		{RequestNames: []string{"gpu-1"}, PoolName: testPool, DeviceName: "gpu-1", CdiDeviceIds: []string{testKind + "=GPU-1"}},
		{RequestNames: []string{"monitor"}, PoolName: testPool, DeviceName: "gpu-2", CdiDeviceIds: []string{testKind + "=GPU-2"}},
	}}}}
	if got := response.String(); got != want.String() {
		t.Errorf("response\n%s, want\n%s", got, want)
	}
	granted := n.gate.claims["uid-a"]
	if !slices.Equal(granted.Devices, []string{"GPU-0", "GPU-1"}) || !slices.Equal(granted.Admin, []string{"GPU-2"}) ||
		!slices.Equal(granted.Pods, []string{"pod-uid-a"}) || granted.String() != "default/a of pod pod-a" {
		t.Errorf("granted %+v", granted)
	}
	n.recorded("uid-a")
	n.unprepares("a")
	n.recorded()
	if len(n.gate.holders()) > 0 {
		t.Errorf("claims %v still have devices", n.gate.holders())
	}
	if changes != 2 {
		t.Errorf("%d changes reported, want 2", changes)
	}
	if o := n.observer; len(o.prepared) != 1 || len(o.unprepared) != 1 || o.prepared[0].Err != nil || o.unprepared[0].Err != nil {
		t.Errorf("outcomes %+v", n.observer)
	}
}

func TestPrepareRefuses(t *testing.T) {
	change := func(f func(c *cluster.Claim)) cluster.Claim {
		c := allocated("a", "0")
		f(&c)
		return c
	}
	for name, tc := range map[string]struct {
		claim   cluster.Claim
		want    string
		refusal Refusal
	}{
		"another claim":            {change(func(c *cluster.Claim) { c.UID = "other" }), "another claim has this name", RefusedClaim},
		"not allocated":            {change(func(c *cluster.Claim) { c.Allocated = false }), "has not allocated", RefusedClaim},
		"other driver":             {change(func(c *cluster.Claim) { c.Devices[0].Driver = "other" }), "no device of driver gpu.nvidia.com", RefusedClaim},
		"other pool":               {change(func(c *cluster.Claim) { c.Devices[0].Pool = "node-2" }), `device "gpu-0" of pool "node-2"`, RefusedUnknown},
		"unknown device":           {change(func(c *cluster.Claim) { c.Devices[0].Device = "nic-0" }), `device "nic-0"`, RefusedUnknown},
		"uppercase":                {change(func(c *cluster.Claim) { c.Devices[0].Device = "gpu-A" }), `device "gpu-A"`, RefusedUnknown},
		"path in a name":           {change(func(c *cluster.Claim) { c.Devices[0].Device = "gpu-../x" }), `device "gpu-../x"`, RefusedUnknown},
		"too many":                 {allocated("a", slices.Repeat([]string{"0"}, 129)...), "129 devices", RefusedClaim},
		"unsupported":              {change(func(c *cluster.Claim) { c.Config = []cluster.ClaimConfig{{Driver: testDriver}} }), "config[0]", RefusedConfig},
		"config of another driver": {change(func(c *cluster.Claim) { c.Config = []cluster.ClaimConfig{{Driver: "other"}} }), "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t)
			n.claims.set("a", tc.claim)
			_, err := n.prepare("a")
			if tc.want == "" {
				if err != nil {
					t.Error(err)
				}
				return
			}
			if err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("error %v, want %q", err, tc.want)
			}
			if got := n.observer.prepared[0].Refusal; got != tc.refusal {
				t.Errorf("refusal %q, want %q", got, tc.refusal)
			}
			n.recorded()
			if len(n.gate.holders()) > 0 {
				t.Errorf("claims %v have devices", n.gate.holders())
			}
		})
	}
}

// After an error of the API server or the gate, a claim has no record, and a later call can prepare it.
func TestPrepareErrors(t *testing.T) {
	n := newNode(t)
	n.add("a", "0")
	n.claims.fail(errors.New("connection refused\nsecond line"))
	if _, err := n.prepare("a"); err == nil || err.Error() != "reading the claim: connection refused; second line" {
		t.Errorf("error %v", err)
	}
	n.claims.fail(nil)
	for err, want := range map[error]Refusal{allocator.ErrUnknown: RefusedUnknown, allocator.ErrUnhealthy: RefusedFault} {
		n.gate.err = errors.Join(err, allocator.ErrHeld) // waiting does not help
		if _, got := n.prepare("a"); got == nil {
			t.Errorf("%v: prepared", err)
		}
		if got := n.observer.prepared[len(n.observer.prepared)-1].Refusal; got != want {
			t.Errorf("refusal %q, want %q", got, want)
		}
	}
	n.gate.err = nil
	n.recorded()
	n.prepares("a", "0")
	if _, err := n.prepare("missing"); err == nil || !strings.Contains(err.Error(), "not found") {
		t.Errorf("error %v for a missing claim", err)
	}
}

// Claims with invalid fields are refused, since the fields become part of file names and messages.
func TestInvalidRequests(t *testing.T) {
	n := newNode(t)
	for _, claim := range []*drapb.Claim{
		{Namespace: "default", Name: "a"},
		{Namespace: "default", Name: "a", Uid: "../state"},
		{Namespace: "default", Name: "a", Uid: ".hidden"},
		{Namespace: "default", Name: "a", Uid: strings.Repeat("a", 129)},
		{Namespace: "default", Uid: "uid"},
		{Name: "a", Uid: "uid"},
		{Namespace: "default", Name: strings.Repeat("a", 100_000), Uid: "uid"},
		nil,
	} {
		claims := []*drapb.Claim{claim}
		prepared, err := n.service.NodePrepareResources(t.Context(), &drapb.NodePrepareResourcesRequest{Claims: claims})
		if err != nil {
			t.Error(err)
		}
		if message := prepared.GetClaims()[claim.GetUid()].GetError(); !strings.Contains(message, "invalid claim") || len(message) > maxMessage {
			t.Errorf("Prepare: %q", message)
		}
		unprepared, err := n.service.NodeUnprepareResources(t.Context(), &drapb.NodeUnprepareResourcesRequest{Claims: claims})
		if err != nil {
			t.Error(err)
		}
		if message := unprepared.GetClaims()[claim.GetUid()].GetError(); !strings.Contains(message, "invalid claim") || len(message) > maxMessage {
			t.Errorf("Unprepare: %q", message)
		}
	}
	many := make([]*drapb.Claim, maxClaims+1)
	if _, err := n.service.NodePrepareResources(t.Context(), &drapb.NodePrepareResourcesRequest{Claims: many}); err == nil {
		t.Error("too many claims prepared")
	}
	if _, err := n.service.NodeUnprepareResources(t.Context(), &drapb.NodeUnprepareResourcesRequest{Claims: many}); err == nil {
		t.Error("too many claims unprepared")
	}
}

// Each call can be repeated, also after a restart of the agent, and without an API server once the claim is prepared.
func TestIdempotent(t *testing.T) {
	n := newNode(t)
	n.add("a", "0")
	n.prepares("a", "0")
	before := n.readFile("uid-a")
	n.prepares("a", "0")
	n.restart()
	if got := n.gate.holders(); !slices.Equal(got, []string{"uid-a"}) {
		t.Errorf("the next agent has %v in its gate", got)
	}
	n.claims.fail(errors.New("unavailable"))
	n.prepares("a", "0")
	n.recorded("uid-a")
	if after := n.readFile("uid-a"); fmt.Sprint(after) != fmt.Sprint(before) {
		t.Errorf("the record changed from %v to %v", before, after)
	}
	n.unprepares("a")
	n.unprepares("a")
	n.unprepares("unknown")
	n.recorded()
	n.restart()
	if got := n.gate.holders(); len(got) > 0 {
		t.Errorf("the next agent has %v in its gate", got)
	}
}

// A prepared claim whose API object is gone or replaced is not prepared again.
func TestPreparedClaimReplaced(t *testing.T) {
	n := newNode(t)
	n.add("a", "0")
	n.prepares("a", "0")
	other := allocated("a", "1")
	other.UID = "other"
	n.claims.set("a", other)
	if _, err := n.prepare("a"); err == nil {
		t.Error("prepared a replaced claim")
	}
	n.claims.fail(cluster.ErrNotFound)
	if _, err := n.prepare("a"); err == nil {
		t.Error("prepared a deleted claim")
	}
	n.recorded("uid-a")
	n.unprepares("a")
}

// Pods that share a claim are added to its record.
func TestPodsAdded(t *testing.T) {
	n := newNode(t)
	n.add("a", "0")
	n.prepares("a", "0")
	n.writeFile("uid-a", strings.Replace(mustRead(t, n.file("uid-a")), `{`, `{"later":{"b":[1]},`, 1))
	n.restart()
	c := allocated("a", "0")
	c.Consumers = []cluster.Consumer{
		{Resource: "pods", Name: "second", UID: "2"}, {Resource: "pods", Name: "third", UID: "3"},
		{APIGroup: "scheduling.k8s.io", Resource: "podgroups", Name: "group", UID: "4"},
	}
	n.claims.set("a", c)
	n.prepares("a", "0")
	if got := n.gate.claims["uid-a"].Pods; !slices.Equal(got, []string{"2", "3", "pod-uid-a"}) {
		t.Errorf("pods %v in the gate", got)
	}
	n.restart()
	if got := n.driver.Records()[0].Pods; len(got) != 3 {
		t.Errorf("pods %v in the record", got)
	}
	if got := fmt.Sprint(n.readFile("uid-a")["later"]); got != "map[b:[1]]" {
		t.Errorf("field of a later version: %s", got)
	}
}

func mustRead(t *testing.T, path string) string {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

// The outcome has the devices of the call that prepared them, not of a later one.
func TestOutcomeOfRepeatedCall(t *testing.T) {
	n := newNode(t)
	n.add("a", "0")
	n.prepares("a", "0")
	n.prepares("a", "0")
	if first, again := n.observer.prepared[0].Devices, n.observer.prepared[1].Devices; len(first) != 1 || len(again) != 0 {
		t.Errorf("devices %v, and of the repeated call %v", first, again)
	}
}

// The record of a claim in continuous use drops the pods that used it first, never those that use it now.
func TestRecordKeepsLatestPods(t *testing.T) {
	n := newNode(t)
	n.add("a", "0")
	n.prepares("a", "0")
	reserve := func(pods ...string) {
		c := allocated("a", "0")
		c.Consumers = []cluster.Consumer{{Resource: "pods", Name: "long", UID: "long"}}
		for _, uid := range pods {
			c.Consumers = append(c.Consumers, cluster.Consumer{Resource: "pods", Name: uid, UID: uid})
		}
		n.claims.set("a", c)
		n.prepares("a", "0")
	}
	var earlier []string
	for i := range maxPods - 2 {
		earlier = append(earlier, fmt.Sprint("0-", i))
	}
	reserve(earlier...)
	for _, uid := range []string{"z", "a"} {
		reserve(uid)
		n.restart()
		pods := n.driver.Records()[0].Pods
		if len(pods) != maxPods || pods[0].UID != "long" || pods[1].UID != uid {
			t.Fatalf("%d pods, the first are %v", len(pods), pods[:2])
		}
	}
	if granted := n.gate.claims["uid-a"].Pods; slices.Contains(granted, "pod-uid-a") || !slices.Contains(granted, "z") {
		t.Errorf("granted to %q …", granted[:3])
	}
}

// A claim that is allocated again, with other devices, releases the former ones, unless the kubelet would give them to
// its pods, too.
func TestAllocatedAgain(t *testing.T) {
	n := newNode(t)
	var kubeletDevices []string
	n.cfg.KubeletDevices = func(string) ([]string, error) { return kubeletDevices, nil }
	n.restart()
	n.add("a", "0")
	n.prepares("a", "0")
	n.add("a", "1")
	kubeletDevices = []string{"gpu-0"}
	if _, err := n.prepare("a"); err == nil || !strings.Contains(err.Error(), "the kubelet would also give its pods gpu-0, which the claim had before; delete the pods") {
		t.Errorf("error %v", err)
	}
	if got := n.gate.claims["uid-a"].Devices; !slices.Equal(got, []string{"GPU-0"}) {
		t.Errorf("devices %v", got)
	}
	kubeletDevices = nil // it has unprepared the claim
	n.prepares("a", "1")
	n.recorded("uid-a")
	n.add("b", "0")
	n.prepares("b", "0")
	if got := n.gate.claims["uid-a"].Devices; !slices.Equal(got, []string{"GPU-1"}) {
		t.Errorf("devices %v", got)
	}
}

// A claim that an earlier agent prepared gets other devices only if the kubelet does not have the former ones. Its
// requests with admin access may have been unknown.
func TestRestoredClaim(t *testing.T) {
	n := newNode(t)
	var err error
	n.cfg.KubeletDevices = func(string) ([]string, error) { return []string{"gpu-0"}, err }
	n.restart()
	restored := allocator.Claim{UID: "uid-a", Namespace: "default", Name: "a", Devices: []string{"GPU-0"}}
	n.gate.Restore(restored)
	n.add("a", "1")
	for _, want := range []string{"which the claim had before", "unreadable"} {
		if _, got := n.prepare("a"); got == nil || !strings.Contains(got.Error(), want) {
			t.Errorf("error %v, want %q", got, want)
		}
		err = errors.New("unreadable")
	}
	if got := n.gate.claims["uid-a"].Devices; !slices.Equal(got, restored.Devices) || len(n.driver.Records()) > 0 {
		t.Errorf("devices %v, records %v", got, n.driver.Records())
	}
	err = nil
	claim := allocated("a", "0", "1")
	claim.Devices[0].AdminAccess = true
	n.claims.set("a", claim)
	n.gate.Restore(allocator.Claim{UID: "uid-a", Namespace: "default", Name: "a", Devices: []string{"GPU-0", "GPU-1"}})
	n.gate.called = func(method string) {
		if method == "Unprepare" {
			t.Error("the claim was released in between")
		}
	}
	n.prepares("a", "0", "1")
	if got := n.gate.claims["uid-a"]; !slices.Equal(got.Devices, []string{"GPU-1"}) || !slices.Equal(got.Admin, []string{"GPU-0"}) {
		t.Errorf("claim %+v", got)
	}
}

// A claim without a record whose former devices the kubelet has forgotten gets others.
func TestRestoredClaimReallocated(t *testing.T) {
	n := newNode(t)
	n.gate.Restore(allocator.Claim{UID: "uid-a", Namespace: "default", Name: "a", Devices: []string{"GPU-0"}})
	n.add("a", "1")
	n.prepares("a", "1")
	if got := n.gate.claims["uid-a"].Devices; !slices.Equal(got, []string{"GPU-1"}) {
		t.Errorf("devices %v", got)
	}
}

// A prepared claim, and one that only monitors a GPU, is refused while the CDI spec lacks its device.
func TestNotInjectable(t *testing.T) {
	n := newNode(t)
	var missing error
	n.cfg.Injectable = func(string) error { return missing }
	n.restart()
	n.add("a", "0")
	n.prepares("a", "0")
	monitor := allocated("monitor", "0")
	monitor.Devices[0].AdminAccess = true
	n.claims.set("monitor", monitor)
	missing = fmt.Errorf("%w: no device node", allocator.ErrUnhealthy)
	for _, name := range []string{"a", "monitor"} {
		if _, err := n.prepare(name); err == nil || !strings.Contains(err.Error(), "GPU-0: unhealthy device: no device node") {
			t.Errorf("claim %s: error %v", name, err)
		}
	}
	missing = nil
	n.prepares("a", "0")
	n.prepares("monitor", "0")
}

// A call that cannot write or remove the record is refused, and leaves the claim unchanged.
func TestRecordFails(t *testing.T) {
	n := newNode(t)
	n.add("a", "0")
	n.add("b", "1")
	dir := filepath.Join(n.cfg.StateDir, recordsDir)
	if err := os.WriteFile(dir, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := n.prepare("a"); err == nil || !strings.Contains(err.Error(), "claim record not written") || !strings.Contains(err.Error(), "--state-dir") {
		t.Errorf("error %v", err)
	}
	if got := n.observer.prepared[0].Refusal; got != RefusedRecord {
		t.Errorf("refusal %q", got)
	}
	if len(n.gate.holders())+len(n.driver.Records()) > 0 {
		t.Errorf("prepared without a record: %v", n.gate.holders())
	}
	n.unprepares("a")
	if err := os.Remove(dir); err != nil {
		t.Fatal(err)
	}
	n.prepares("a", "0")
	n.prepares("b", "1")

	// A directory in place of the record cannot be removed.
	if err := os.Remove(n.file("uid-a")); err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(filepath.Join(n.file("uid-a"), "x"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := n.unprepare("a"); err == nil || !strings.Contains(err.Error(), "claim record not removed") {
		t.Errorf("error %v", err)
	}
	if got := n.gate.holders(); !slices.Equal(got, []string{"uid-a", "uid-b"}) {
		t.Errorf("claims %v have devices", got)
	}
	if err := os.RemoveAll(n.file("uid-a")); err != nil {
		t.Fatal(err)
	}
	n.unprepares("a")
	n.unprepares("b")
	n.recorded()
}

// The temporary file of a record that a killed agent was writing is removed.
func TestTemporaryRecordsRemoved(t *testing.T) {
	n := newNode(t)
	n.add("a", "0")
	n.prepares("a", "0")
	left := filepath.Join(n.cfg.StateDir, recordsDir, ".uid-b.json.123")
	if err := os.WriteFile(left, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	n.restart()
	if _, err := os.Stat(left); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("%s: %v", left, err)
	}
	n.recorded("uid-a")
}

// Without a state directory, records are kept in memory.
func TestNoStateDirectory(t *testing.T) {
	n := newNode(t)
	n.cfg.StateDir = ""
	n.restart()
	n.add("a", "0")
	n.prepares("a", "0")
	n.prepares("a", "0")
	if got := uids(n.driver.Records()); !slices.Equal(got, []string{"uid-a"}) {
		t.Errorf("records of %v", got)
	}
	n.unprepares("a")
}

// killedNode is a node whose claims change the time slice of a GPU, limit the memory of a pod, or limit the compute time
// of a claim.
type killedNode struct {
	*node
	slices   *timeSlices
	limits   *limitedPods
	ceilings map[string]int // of prepared claims, in percent by UID
}

func newKilledNode(t *testing.T) killedNode {
	n, slices := newSlicedNode(t)
	limits, ceilings := &limitedPods{}, map[string]int{}
	n.cfg.LimitMemory = limits.limit
	n.cfg.ClaimCDIKind = "gpucdi.dev/claim"
	n.cfg.MPSPercentage = func(_ string, _ allocator.Amount, ceiling int) int { return ceiling }
	n.cfg.CheckPods = func(context.Context, string, []Pod) error { return nil }
	n.cfg.LimitCompute = func(_ context.Context, r Record) error {
		if percentage := r.Devices[0].MPSPercentage; percentage != 0 {
			ceilings[r.UID] = percentage
		}
		return nil
	}
	n.cfg.ReleaseCompute = func(_ context.Context, r Record) error {
		for _, d := range r.Devices { // none if the claim has no record
			if d.MPSPercentage != 0 {
				delete(ceilings, r.UID)
			}
		}
		return nil
	}
	n.restart()
	return killedNode{n, slices, limits, ceilings}
}

// addCeiled adds a claim for a part of GPU 0 with an MPS percentage to the API server.
func (n *node) addCeiled(name string) {
	n.addShare(name, "0", "25")
	claim := n.claims.claims["default/"+name]
	claim.Config = []cluster.ClaimConfig{deviceConfigOf(`,"computeCeiling":50`)}
	n.claims.set(name, claim)
}

// preparesA prepares claim a, which has GPU 0, and checks its CDI device names. A claim with an MPS percentage has its own
// CDI device in addition.
func (n *node) preparesA() {
	n.Helper()
	want := []string{testKind + "=GPU-0"}
	claim := n.claims.claims["default/a"]
	if configs, _ := deviceConfigsFor(claim, claim.Devices[0]); configs.ceiling != 0 {
		want = append(want, "gpucdi.dev/claim=uid-a")
	}
	if got, err := n.prepare("a"); err != nil || !slices.Equal(got, want) {
		n.Errorf("CDI devices %v, error %v; want %v", got, err, want)
	}
}

// traces is what a killed agent leaves: the files of its records by name, the time slices of GPUs by UUID, and the
// ceilings of claims by UID.
type traces struct {
	files    map[string]string
	slices   map[string]gpu.TimeSlice
	ceilings map[string]int
}

func (n killedNode) traces() traces {
	files := map[string]string{}
	entries, _ := os.ReadDir(filepath.Join(n.cfg.StateDir, recordsDir))
	for _, e := range entries {
		files[e.Name()] = mustRead(n.T, filepath.Join(n.cfg.StateDir, recordsDir, e.Name()))
	}
	return traces{files, maps.Clone(n.slices.slices), maps.Clone(n.ceilings)}
}

// The agent is killed at each step of Prepare and Unprepare, and before the rename of a record. What the next one finds
// on disk is either the prepared claim or nothing, both calls then succeed, and nothing is left over.
func TestKilledAtEachStep(t *testing.T) {
	for kind, add := range map[string]func(n *node, name string){
		"a GPU":                   func(n *node, name string) { n.add(name, "0") },
		"a GPU with a time slice": func(n *node, name string) { n.addSliced(name, gpu.TimeSliceLong, "0") },
		"a share":                 func(n *node, name string) { n.addShare(name, "0", "25") },
		"a ceiled share":          (*node).addCeiled,
	} {
		for call, run := range map[string]func(n *node){
			"Prepare":   func(n *node) { n.preparesA() },
			"Unprepare": func(n *node) { n.preparesA(); n.unprepares("a") },
		} {
			for i, left := range stepsOf(t, add, run) {
				t.Run(fmt.Sprintf("%s of %s at step %d", call, kind, i), func(t *testing.T) { recovers(t, add, left) })
			}
		}
	}
}

// stepsOf returns the traces of an agent that is killed at each step of a call. While the compute time of a claim is
// limited, the record of the claim is on disk, so that the next agent can remove the limit.
func stepsOf(t *testing.T, add func(n *node, name string), call func(n *node)) (steps []traces) {
	n := newKilledNode(t)
	add(n.node, "a")
	step := func(name string) {
		now := n.traces()
		if _, recorded := now.files["uid-a.json"]; len(now.ceilings) > 0 && !recorded {
			t.Errorf("%s: ceilings %v without a record", name, now.ceilings)
		}
		steps = append(steps, now)
		for name, text := range now.files { // killed before the rename, and while the file was written
			for _, text := range []string{text, text[:len(text)/2]} {
				steps = append(steps, traces{map[string]string{"." + name + ".123": text}, now.slices, now.ceilings})
			}
		}
	}
	n.claims.before = func(context.Context) { step("Claim") }
	n.gate.called = step
	n.driver.cfg.Changed = func() { step("Changed") }
	setTimeSlice, limitMemory := n.driver.cfg.SetTimeSlice, n.driver.cfg.LimitMemory
	n.driver.cfg.SetTimeSlice = func(ctx context.Context, uuid string, slice gpu.TimeSlice) error {
		step("before the time slice")
		defer step("after the time slice")
		return setTimeSlice(ctx, uuid, slice)
	}
	n.driver.cfg.LimitMemory = func(ctx context.Context, pod string) error {
		step("before the limit")
		defer step("after the limit")
		return limitMemory(ctx, pod)
	}
	limitCompute, releaseCompute := n.driver.cfg.LimitCompute, n.driver.cfg.ReleaseCompute
	n.driver.cfg.LimitCompute = func(ctx context.Context, r Record) error {
		step("before the ceiling")
		defer step("after the ceiling")
		return limitCompute(ctx, r)
	}
	n.driver.cfg.ReleaseCompute = func(ctx context.Context, r Record) error {
		step("before the end of the ceiling")
		defer step("after the end of the ceiling")
		return releaseCompute(ctx, r)
	}
	call(n.node)
	step("response")
	if len(steps) < 4 {
		t.Fatalf("%d steps", len(steps))
	}
	return steps
}

// recovers checks the calls to an agent that finds the traces of a killed one.
func recovers(t *testing.T, add func(n *node, name string), left traces) {
	n := newKilledNode(t)
	add(n.node, "a")
	n.add("b", "0")
	for name, text := range left.files {
		n.writeFile("uid-a", text)
		if err := os.Rename(n.file("uid-a"), filepath.Join(n.cfg.StateDir, recordsDir, name)); err != nil {
			t.Fatal(err)
		}
	}
	maps.Copy(n.slices.slices, left.slices)
	maps.Copy(n.ceilings, left.ceilings)
	n.restart()
	_, prepared := left.files["uid-a.json"]
	if prepared != slices.Contains(n.gate.holders(), "uid-a") {
		t.Errorf("recorded: %t, gate has %v", prepared, n.gate.holders())
	}
	n.preparesA()
	record := n.driver.Records()[0]
	if record.partial() {
		n.limits.check(t, "pod-uid-a")
	}
	if got, want := n.ceilings["uid-a"], record.Devices[0].MPSPercentage; got != want {
		t.Errorf("ceiling %d, want %d", got, want)
	}
	n.unprepares("a")
	n.prepares("b", "0")
	n.unprepares("b")
	n.recorded()
	if now := n.traces(); len(now.files)+len(now.ceilings) > 0 || now.slices["GPU-0"] != "" && now.slices["GPU-0"] != gpu.TimeSliceDefault {
		t.Errorf("left over: %v", now)
	}
}

// A claim with a damaged record counts as prepared until it is prepared again or unprepared.
func TestDamagedRecords(t *testing.T) {
	n := newNode(t)
	for uid, text := range map[string]string{
		"empty": "", "null": "null", "torn": `{"namespace":"d`, "array": "[]", "other": `{"a":1}`,
		"no-id":    `{"namespace":"default","name":"x","devices":[{"name":"gpu-0"}]}`,
		"bad-time": `{"namespace":"default","name":"x","devices":[{"name":"gpu-0","id":"GPU-0"}],"prepared":"yesterday"}`,
		"uid-a":    "\x00", "good": `{"namespace":"default","name":"good","devices":[{"name":"gpu-5","id":"GPU-5"}]}`,
	} {
		n.writeFile(uid, text)
	}
	for _, ignored := range []string{".hidden", ".uid-a.json.123", "no suffix"} {
		if err := os.WriteFile(filepath.Join(n.cfg.StateDir, recordsDir, ignored), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Mkdir(n.file("directory"), 0o700); err != nil {
		t.Fatal(err)
	}
	n.writeFile("large", strings.Repeat(" ", recordLimit+1))
	n.restart()
	want := []string{"array", "bad-time", "directory", "empty", "good", "large", "no-id", "null", "other", "torn", "uid-a"}
	n.recorded(want...)
	for _, r := range n.driver.Records() {
		if (r.Damaged == "") != (r.UID == "good") {
			t.Errorf("record %+v", r)
		}
	}
	if got := n.gate.holders(); !slices.Equal(got, []string{"good"}) {
		t.Errorf("claims %v in the gate", got)
	}
	n.add("a", "0")
	n.prepares("a", "0")
	n.restart()
	if got := n.gate.holders(); !slices.Equal(got, []string{"good", "uid-a"}) {
		t.Errorf("claims %v in the gate", got)
	}
	n.writeFile("uid-b", "")
	n.restart()
	n.unprepares("b")
	if slices.Contains(n.onDisk(), "uid-b") {
		t.Error("the damaged record remains")
	}
}

func TestTooManyRecords(t *testing.T) {
	n := newNode(t)
	for i := range maxRecords {
		r := Record{UID: fmt.Sprint(i)}
		n.driver.records.records[r.UID] = storedRecord{Record: r}
	}
	n.driver.records.publish()
	n.add("a", "0")
	if _, err := n.prepare("a"); err == nil || !strings.Contains(err.Error(), "4096 claims") {
		t.Errorf("error %v", err)
	}
}

// A claim gets its device as soon as the claim that holds it is unprepared.
func TestWaitForRelease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.add("a", "0")
		n.add("b", "0")
		n.prepares("a", "0")
		prepared := make(chan error)
		start := time.Now()
		go func() {
			_, err := n.prepare("b")
			prepared <- err
		}()
		time.Sleep(300 * time.Millisecond)
		synctest.Wait()
		n.recorded("uid-a") // a waiting claim has no record
		if w := n.observer.waiting; len(w) != 1 || w[0].UID != "uid-b" || w[0].Name != "b" || !strings.Contains(w[0].Err.Error(), "GPU-0 is prepared for claim default/a") {
			t.Errorf("the observer has the waiting claims %+v", w)
		}
		n.unprepares("a")
		if err := <-prepared; err != nil {
			t.Error(err)
		}
		if waited := time.Since(start); waited != 300*time.Millisecond {
			t.Errorf("waited %s", waited)
		}
		n.recorded("uid-b")
	})
}

// A refused claim names the pods that hold its devices through the device plugin.
func TestPluginPodsNamed(t *testing.T) {
	for want, pods := range map[string][]string{
		"":                        nil,
		"; held by pod default/x": {"default/x"},
		"; held by pods default/w, default/x, default/y, 1 more": {"default/x", "default/w", "default/z", "default/y", "default/x"},
	} {
		synctest.Test(t, func(t *testing.T) {
			n := newNode(t)
			n.cfg.Pods = func(_ context.Context, id string) []string {
				if id != "GPU-0" {
					t.Errorf("pods of %s requested", id)
				}
				return pods
			}
			n.restart()
			n.add("a", "0")
			n.gate.err = fmt.Errorf("%w: GPU-0: waiting", allocator.ErrHeld)
			if _, err := n.prepare("a"); err == nil || !strings.Contains(err.Error(), "GPU-0: waiting"+want+"; waited 30s") {
				t.Errorf("error %v, want %q", err, want)
			}
		})
	}
}

// A claim whose device is not released in time is refused with the names of the claim and the pod that hold it. Other
// claims are prepared meanwhile.
func TestWaitEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		for name, g := range map[string]string{"a": "0", "b": "0", "c": "1"} {
			n.add(name, g)
		}
		n.prepares("a", "0")
		refused := make(chan error)
		start := time.Now()
		go func() {
			_, err := n.prepare("b")
			refused <- err
		}()
		synctest.Wait()
		n.prepares("c", "1")
		if took := time.Since(start); took != 0 {
			t.Errorf("another claim took %s", took)
		}
		err := <-refused
		if err == nil || !strings.Contains(err.Error(), "GPU-0 is prepared for claim default/a of pod pod-a") {
			t.Errorf("error %v", err)
		}
		if took := time.Since(start); took != defaultWait {
			t.Errorf("refused after %s", took)
		}
		if got := n.observer.prepared[2].Refusal; got != RefusedHeld {
			t.Errorf("refusal %q", got)
		}
		n.recorded("uid-a", "uid-c")
	})
}

// A call that the kubelet cancels, or that the end of the agent interrupts, leaves nothing behind.
func TestWaitCanceled(t *testing.T) {
	for name, want := range map[string]string{"kubelet": "the kubelet canceled the call", "agent": "the driver is stopping"} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := newNode(t)
				n.add("a", "0")
				n.add("b", "0")
				n.prepares("a", "0")
				call, cancel := context.WithCancel(t.Context())
				defer cancel()
				running, stop := context.WithCancel(t.Context())
				defer stop()
				n.service.running = running
				results := make(chan string)
				for range 2 { // the second waits for the first
					go func() {
						response, err := n.service.NodePrepareResources(call, &drapb.NodePrepareResourcesRequest{Claims: []*drapb.Claim{ref("b")}})
						if err != nil {
							t.Error(err)
						}
						results <- response.GetClaims()["uid-b"].GetError()
					}()
				}
				synctest.Wait()
				if name == "agent" {
					stop()
				} else {
					cancel()
				}
				for range 2 {
					if message := <-results; !strings.Contains(message, want) {
						t.Errorf("error %q, want %q", message, want)
					}
				}
				n.recorded("uid-a")
				if got := n.gate.holders(); !slices.Equal(got, []string{"uid-a"}) {
					t.Errorf("claims %v have devices", got)
				}
			})
		})
	}
}

// A call ends before the kubelet's timeout, even if the API server hangs.
func TestCallTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.add("a", "0")
		n.claims.before = func(ctx context.Context) { <-ctx.Done() }
		start := time.Now()
		if _, err := n.prepare("a"); err == nil {
			t.Error("no error")
		}
		if took := time.Since(start); took != callTimeout {
			t.Errorf("took %s", took)
		}
		if got := n.observer.prepared[0].Refusal; got != RefusedCanceled {
			t.Errorf("refusal %q", got)
		}
	})
}

// Calls for the same claim wait for each other. Calls for other claims do not.
func TestCallsOverlap(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.add("a", "0")
		n.add("b", "1")
		hang := make(chan struct{})
		n.claims.before = func(context.Context) { <-hang }
		results := make(chan error, 3)
		go func() { _, err := n.prepare("a"); results <- err }()
		synctest.Wait()
		n.claims.mu.Lock()
		n.claims.before = nil
		n.claims.mu.Unlock()
		go func() { _, err := n.prepare("a"); results <- err }()
		go func() { results <- n.unprepare("a") }()
		n.prepares("b", "1")
		synctest.Wait()
		if len(results) > 0 {
			t.Error("a call did not wait for an earlier call for the same claim")
		}
		close(hang)
		for range 3 {
			if err := <-results; err != nil {
				t.Error(err)
			}
		}
	})
}

func TestParameters(t *testing.T) {
	object := func(kind, rest string) json.RawMessage {
		return json.RawMessage(`{"apiVersion":"resource.nvidia.com/v1beta1","kind":"` + kind + `"` + rest + `}`)
	}
	sharing := object("GpuConfig", `,"sharing":{"strategy":"MPS"}`)
	timeSlicing := func(kind, rest string) []cluster.ClaimConfig {
		return []cluster.ClaimConfig{{Driver: testDriver, Parameters: object(kind, `,"sharing":{"strategy":"TimeSlicing"`+rest+`}`)}}
	}
	for name, tc := range map[string]struct {
		config []cluster.ClaimConfig
		want   string // empty if supported
	}{
		"none":                      {nil, ""},
		"empty":                     {[]cluster.ClaimConfig{{Driver: testDriver, Parameters: object("GpuConfig", "")}}, ""},
		"null":                      {[]cluster.ClaimConfig{{Driver: testDriver, Parameters: object("GpuConfig", `,"sharing":null`)}}, ""},
		"sharing":                   {[]cluster.ClaimConfig{{Driver: testDriver, Parameters: sharing}}, `config[0].opaque.parameters.sharing.strategy: "MPS"; use TimeSlicing`},
		"setting":                   {[]cluster.ClaimConfig{{Driver: testDriver, Parameters: object("GpuConfig", `,"more":{}`)}}, "config[0].opaque.parameters.more: not supported; remove it"},
		"time slicing":              {timeSlicing("GpuConfig", ""), ""},
		"interval":                  {timeSlicing("GpuConfig", `,"timeSlicingConfig":{"interval":"Long"}`), ""},
		"no interval":               {timeSlicing("GpuConfig", `,"timeSlicingConfig":{}`), ""},
		"invalid interval":          {timeSlicing("GpuConfig", `,"timeSlicingConfig":{"interval":"long"}`), `sharing.timeSlicingConfig.interval: "long"; use one of ["Default" "Short" "Medium" "Long"]`},
		"interval of a wrong type":  {timeSlicing("GpuConfig", `,"timeSlicingConfig":{"interval":3}`), `interval: ""`},
		"interval setting":          {timeSlicing("GpuConfig", `,"timeSlicingConfig":{"interval":"Long","x":1}`), "sharing.timeSlicingConfig.x: not supported"},
		"intervals":                 {timeSlicing("GpuConfig", `,"timeSlicingConfig":["Long"]`), "sharing.timeSlicingConfig: json"},
		"settings of MPS":           {timeSlicing("GpuConfig", `,"mpsConfig":{}`), "sharing.mpsConfig: not supported"},
		"no strategy":               {[]cluster.ClaimConfig{{Driver: testDriver, Parameters: object("GpuConfig", `,"sharing":{}`)}}, `sharing.strategy: ""; use TimeSlicing`},
		"sharing of a wrong type":   {[]cluster.ClaimConfig{{Driver: testDriver, Parameters: object("GpuConfig", `,"sharing":"TimeSlicing"`)}}, "parameters.sharing: json"},
		"case":                      {[]cluster.ClaimConfig{{Driver: testDriver, Parameters: object("GpuConfig", `,"Kind":"x"`)}}, "parameters.Kind"},
		"kind":                      {[]cluster.ClaimConfig{{Driver: testDriver, Parameters: object("VfioDeviceConfig", "")}}, `kind "VfioDeviceConfig"`},
		"version":                   {[]cluster.ClaimConfig{{Driver: testDriver, Parameters: json.RawMessage(`{"apiVersion":"v2","kind":"GpuConfig"}`)}}, `apiVersion "v2"`},
		"no kind":                   {[]cluster.ClaimConfig{{Driver: testDriver, Parameters: json.RawMessage(`{"kind":7}`)}}, `kind ""`},
		"missing":                   {[]cluster.ClaimConfig{{Driver: testDriver}}, "JSON"},
		"text":                      {[]cluster.ClaimConfig{{Driver: testDriver, Parameters: json.RawMessage(`"x"`)}}, "string"},
		"large":                     {[]cluster.ClaimConfig{{Driver: testDriver, Parameters: make([]byte, maxParameters+1)}}, "larger"},
		"another driver":            {[]cluster.ClaimConfig{{Driver: "other", Parameters: sharing}}, ""},
		"another request":           {[]cluster.ClaimConfig{{Driver: testDriver, Requests: []string{"x"}, Parameters: sharing}}, ""},
		"this request":              {[]cluster.ClaimConfig{{Driver: testDriver, Requests: []string{"x", "gpu"}, Parameters: sharing}}, "config[0]"},
		"this subrequest":           {[]cluster.ClaimConfig{{Driver: testDriver, Requests: []string{"gpu/h100"}, Parameters: sharing}}, "config[0]"},
		"another subrequest":        {[]cluster.ClaimConfig{{Driver: testDriver, Requests: []string{"gpu/a100"}, Parameters: sharing}}, ""},
		"claim overrides class":     {[]cluster.ClaimConfig{{FromClass: true, Driver: testDriver, Parameters: sharing}, {Driver: testDriver, Parameters: object("GpuConfig", "")}}, ""},
		"MIG does not override":     {[]cluster.ClaimConfig{{FromClass: true, Driver: testDriver, Parameters: sharing}, {Driver: testDriver, Parameters: object("MigDeviceConfig", "")}}, "config[0]"},
		"MIG":                       {[]cluster.ClaimConfig{{Driver: testDriver, Parameters: object("MigDeviceConfig", "")}}, ""},
		"MIG with settings":         {[]cluster.ClaimConfig{{Driver: testDriver, Parameters: object("MigDeviceConfig", `,"sharing":{}`)}}, "sharing.strategy"},
		"MIG for a GPU":             {[]cluster.ClaimConfig{{Driver: testDriver, Requests: []string{"gpu"}, Parameters: object("MigDeviceConfig", "")}}, "does not apply to a GPU"},
		"unprintable field":         {[]cluster.ClaimConfig{{Driver: testDriver, Parameters: object("GpuConfig", `,"\u001b[31m":1`)}}, "not supported"},
		"long field":                {[]cluster.ClaimConfig{{Driver: testDriver, Parameters: object("GpuConfig", `,"`+strings.Repeat("x", 5000)+`":1`)}}, "…"},
		"other after ours":          {[]cluster.ClaimConfig{{Driver: testDriver, Parameters: sharing}, {Driver: "other"}}, "config[0]"},
		"the last one is effective": {[]cluster.ClaimConfig{{Driver: testDriver, Parameters: object("GpuConfig", "")}, {Driver: testDriver, Parameters: sharing}}, "config[1]"},
	} {
		t.Run(name, func(t *testing.T) {
			c := cluster.Claim{Config: tc.config, Devices: []cluster.ClaimDevice{{Request: "nic", Driver: "other"}, {Request: "gpu/h100", Driver: testDriver}}}
			_, err := parametersFor(c, c.Devices[1])
			if (err == nil) != (tc.want == "") || err != nil && !strings.Contains(err.Error(), tc.want) {
				t.Errorf("error %v, want %q", err, tc.want)
			}
			if err != nil && (!errors.Is(err, errUnsupported) || strings.Contains(err.Error(), "\x1b") || len(err.Error()) > 500) {
				t.Errorf("error %q", err)
			}
		})
	}
}

// MIG devices have their own kind of parameters.
func TestMIGConfig(t *testing.T) {
	parameters := func(kind string, rest ...string) json.RawMessage {
		return json.RawMessage(`{"apiVersion":"resource.nvidia.com/v1beta1","kind":"` + kind + `"` + strings.Join(rest, "") + `}`)
	}
	for name, tc := range map[string]struct {
		config []cluster.ClaimConfig
		want   string // part of the error; empty if there is none
	}{
		"MIG":          {[]cluster.ClaimConfig{{Driver: testDriver, Requests: []string{"mig"}, Parameters: parameters("MigDeviceConfig")}}, ""},
		"GPU":          {[]cluster.ClaimConfig{{Driver: testDriver, Requests: []string{"mig"}, Parameters: parameters("GpuConfig")}}, "does not apply to a MIG device"},
		"all requests": {[]cluster.ClaimConfig{{Driver: testDriver, Parameters: parameters("GpuConfig")}}, ""},
		"time slicing": {[]cluster.ClaimConfig{{Driver: testDriver, Parameters: parameters("MigDeviceConfig", `,"sharing":{"strategy":"TimeSlicing"}`)}}, ""},
		"interval":     {[]cluster.ClaimConfig{{Driver: testDriver, Parameters: parameters("MigDeviceConfig", `,"sharing":{"strategy":"TimeSlicing","timeSlicingConfig":{}}`)}}, "timeSlicingConfig: not supported"},
		"of the GPU":   {[]cluster.ClaimConfig{{Driver: testDriver, Parameters: parameters("GpuConfig", `,"sharing":{"strategy":"TimeSlicing"}`)}}, ""},
	} {
		c := cluster.Claim{Config: tc.config, Devices: []cluster.ClaimDevice{{Request: "mig", Driver: testDriver, Device: "mig-0"}}}
		if _, err := parametersFor(c, c.Devices[0]); (err == nil) != (tc.want == "") || err != nil && !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: error %v, want %q", name, err, tc.want)
		}
	}
}

func TestDeviceNames(t *testing.T) {
	for uuid, name := range map[string]string{
		"GPU-4fbdcb86-5b5c-4b5f-8c3a-0123456789ab": "gpu-4fbdcb86-5b5c-4b5f-8c3a-0123456789ab",
		"MIG-4fbdcb86-5b5c-5b5f-8c3a-0123456789ab": "mig-4fbdcb86-5b5c-5b5f-8c3a-0123456789ab",
		"GPU-0": "gpu-0", "GPU-": "", "GPU-A": "", "MIG-": "", "MIG-GPU-0/1/2": "", "": "", "GPU-0-": "",
		"GPU-" + strings.Repeat("0", 59): "gpu-" + strings.Repeat("0", 59), "GPU-" + strings.Repeat("0", 60): "",
	} {
		got, ok := DeviceName(uuid)
		if ok != (name != "") || ok && got != name {
			t.Errorf("DeviceName(%q) = %q, %t", uuid, got, ok)
		}
		if id, ok := DeviceID(got); ok != (name != "") || ok && id != uuid {
			t.Errorf("DeviceID(%q) = %q, %t", got, id, ok)
		}
	}
}

// A claim gets the amounts that it consumes of a shared GPU. The amounts of several requests for the same GPU add up.
func TestPrepareShares(t *testing.T) {
	share := func(cores, memory string) cluster.ClaimDevice {
		return cluster.ClaimDevice{Request: "gpu", Driver: testDriver, Pool: testPool, Device: "gpu-0", ShareID: "s" + cores,
			Consumed: map[string]string{capacityCores: cores, capacityMemory: memory}}
	}
	claim := cluster.Claim{Allocated: true, Devices: []cluster.ClaimDevice{share("25", "20Gi"), share("50", "1000Mi")}}
	devices, err := devicesOf(claim, testDriver, testPool)
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]allocator.Amount{"GPU-0": {Cores: 75, Memory: 20<<30 + 1000<<20}}
	if got := (Record{UID: "uid", Devices: devices}).grant().Amounts; !maps.Equal(got, want) {
		t.Errorf("amounts %v, want %v", got, want)
	}
	replicas := cluster.ClaimDevice{Request: "gpu", Driver: testDriver, Pool: testPool, Device: "gpu-0", ShareID: "s",
		Consumed: map[string]string{capacityShares: "2", capacityMemory: "0"}}
	devices, err = devicesOf(cluster.Claim{Allocated: true, Devices: []cluster.ClaimDevice{replicas}}, testDriver, testPool)
	if err != nil || devices[0].Amount != (allocator.Amount{Replicas: 2}) {
		t.Errorf("devices %+v, error %v, want 2 replicas", devices, err)
	}
	for _, d := range []cluster.ClaimDevice{share("many", "1Gi"), share("1", "")} {
		if _, err := devicesOf(cluster.Claim{Allocated: true, Devices: []cluster.ClaimDevice{d}}, testDriver, testPool); err == nil {
			t.Errorf("%v is accepted", d.Consumed)
		}
	}
	sliced := claim
	sliced.Config = []cluster.ClaimConfig{{Driver: testDriver, Parameters: json.RawMessage(
		`{"apiVersion":"resource.nvidia.com/v1beta1","kind":"GpuConfig","sharing":{"strategy":"TimeSlicing","timeSlicingConfig":{"interval":"Long"}}}`)}}
	if _, err := devicesOf(sliced, testDriver, testPool); err == nil || !strings.Contains(err.Error(), "gets a share of a GPU") {
		t.Errorf("a time slice of a shared GPU: error %v", err)
	}
}
