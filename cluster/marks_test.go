package cluster

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"testing"
)

// fakeNodes is an API server with Nodes, which supports the patches of Mark.
type fakeNodes struct {
	mu      sync.Mutex
	nodes   map[string]map[string]any
	version int
	writes  []string          // path of each accepted write
	before  func(node string) // called before each write, as if by another client, with mu held
	refuse  map[string]int    // status code by method and path, such as "GET /x"
}

// serveMarks starts an API server with nodes that have a foreign taint and a foreign condition.
func serveMarks(t *testing.T, names ...string) (*fakeNodes, *Client) {
	t.Helper()
	f := &fakeNodes{nodes: map[string]map[string]any{}, refuse: map[string]int{}}
	for _, name := range names {
		var n map[string]any
		text := fmt.Sprintf(`{"metadata":{"name":%q,"resourceVersion":"1"},
			"spec":{"taints":[{"key":"a","effect":"NoExecute","timeAdded":"2026-01-01T00:00:00Z","future":5}]},
			"status":{"conditions":[{"type":"Ready","status":"True","reason":"KubeletReady","message":"ready"}]}}`, name)
		if err := json.Unmarshal([]byte(text), &n); err != nil {
			t.Fatal(err)
		}
		f.nodes[name] = n
	}
	s := newServer(t)
	api := httptest.NewServer(f)
	t.Cleanup(api.Close)
	s.client.host = api.URL
	return f, s.client
}

func (f *fakeNodes) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if code := f.refuse[r.Method+" "+r.URL.Path]; code != 0 {
		w.WriteHeader(code)
		return
	}
	if r.URL.Path == nodesPath {
		items := []any{}
		for _, n := range f.nodes {
			items = append(items, n)
		}
		_ = json.NewEncoder(w).Encode(map[string]any{"items": items})
		return
	}
	name, status := strings.CutSuffix(strings.TrimPrefix(r.URL.Path, nodesPath+"/"), "/status")
	n := f.nodes[name]
	if r.Method == http.MethodGet {
		_ = json.NewEncoder(w).Encode(n)
		return
	}
	if f.before != nil {
		f.before(name)
	}
	var patch struct {
		Metadata struct{ ResourceVersion string }
		Spec     struct{ Taints []any }
		Status   struct{ Conditions []map[string]any }
	}
	_ = json.NewDecoder(r.Body).Decode(&patch)
	if status && r.Header.Get("Content-Type") == "application/strategic-merge-patch+json" {
		f.mergeConditions(n, patch.Status.Conditions)
	} else if !status && r.Header.Get("Content-Type") == "application/merge-patch+json" {
		if patch.Metadata.ResourceVersion != n["metadata"].(map[string]any)["resourceVersion"] {
			w.WriteHeader(http.StatusConflict)
			return
		}
		n["spec"].(map[string]any)["taints"] = patch.Spec.Taints
	} else {
		w.WriteHeader(http.StatusUnsupportedMediaType)
		return
	}
	f.writes = append(f.writes, r.URL.Path)
	f.changed(name)
}

// mergeConditions merges conditions by type.
func (f *fakeNodes) mergeConditions(n map[string]any, patches []map[string]any) {
	status := n["status"].(map[string]any)
	for _, p := range patches {
		merged := []any{}
		for _, c := range status["conditions"].([]any) {
			if c.(map[string]any)["type"] != p["type"] {
				merged = append(merged, c)
			}
		}
		if p["$patch"] != "delete" {
			merged = append(merged, p)
		}
		status["conditions"] = merged
	}
}

func (f *fakeNodes) changed(name string) {
	f.version++
	f.nodes[name]["metadata"].(map[string]any)["resourceVersion"] = "v" + strconv.Itoa(f.version)
}

// taints returns the taints of the node "node" as JSON.
func (f *fakeNodes) taints() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	text, _ := json.Marshal(f.nodes["node"]["spec"].(map[string]any)["taints"])
	return string(text)
}

// condition returns a field of the condition of the node "node"; nil if it has none.
func (f *fakeNodes) condition(field string) (value any) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, c := range f.nodes["node"]["status"].(map[string]any)["conditions"].([]any) {
		if c := c.(map[string]any); c["type"] == ConditionType {
			value = c[field]
		}
	}
	return value
}

const foreignTaint = `{"effect":"NoExecute","future":5,"key":"a","timeAdded":"2026-01-01T00:00:00Z"}`

var faulty = Marks{&Condition{Reason: "GPUFault", Message: "XID 48"}, &NodeTaint{"xid_48", "NoSchedule"}}

func mark(t *testing.T, c *Client, want Marks) {
	t.Helper()
	if err := c.Mark(t.Context(), "node", want); err != nil {
		t.Fatal(err)
	}
}

// Mark writes only what differs, and keeps foreign taints with their unknown fields.
func TestMark(t *testing.T) {
	f, client := serveMarks(t, "node")
	for i, tc := range []struct {
		want   Marks
		writes int
		taint  string // of gpucdi
		status any
	}{
		{Marks{}, 0, "", nil},
		{Marks{Condition: &Condition{Healthy: true, Reason: "GPUsHealthy"}}, 1, "", "True"},
		{faulty, 2, `,{"effect":"NoSchedule","key":"gpucdi.dev/gpu-fault","value":"xid_48"}`, "False"},
		{faulty, 0, `,{"effect":"NoSchedule","key":"gpucdi.dev/gpu-fault","value":"xid_48"}`, "False"},
		{Marks{faulty.Condition, &NodeTaint{"xid_48", "NoExecute"}}, 1, `,{"effect":"NoExecute","key":"gpucdi.dev/gpu-fault","value":"xid_48"}`, "False"},
		{Marks{Taint: &NodeTaint{"ecc", "NoExecute"}}, 2, `,{"effect":"NoExecute","key":"gpucdi.dev/gpu-fault","value":"ecc"}`, nil},
		{Marks{}, 1, "", nil},
	} {
		f.writes = nil
		mark(t, client, tc.want)
		if len(f.writes) != tc.writes {
			t.Errorf("step %d: writes %q, want %d", i, f.writes, tc.writes)
		}
		if got, want := f.taints(), "["+foreignTaint+tc.taint+"]"; got != want {
			t.Errorf("step %d: taints %s, want %s", i, got, want)
		}
		if got := f.condition("status"); got != tc.status {
			t.Errorf("step %d: status of the condition %v, want %v", i, got, tc.status)
		}
	}
}

// lastTransitionTime changes only with the status.
func TestConditionTransition(t *testing.T) {
	f, client := serveMarks(t, "node")
	mark(t, client, faulty)
	f.mu.Lock()
	for _, c := range f.nodes["node"]["status"].(map[string]any)["conditions"].([]any) {
		c.(map[string]any)["lastTransitionTime"] = "2020-01-01T00:00:00Z"
	}
	f.mu.Unlock()
	mark(t, client, Marks{&Condition{Reason: "GPUFault", Message: "XID 79"}, faulty.Taint})
	if got := f.condition("lastTransitionTime"); got != "2020-01-01T00:00:00Z" || f.condition("message") != "XID 79" {
		t.Errorf("after another message, the last transition is %v", got)
	}
	mark(t, client, Marks{Condition: &Condition{Healthy: true}})
	if got := f.condition("lastTransitionTime"); got == "2020-01-01T00:00:00Z" {
		t.Error("the transition to another status keeps the old time")
	}
}

// A taint that another client adds between read and write is kept.
func TestConcurrentTaint(t *testing.T) {
	f, client := serveMarks(t, "node")
	added := 0
	f.before = func(node string) {
		if added++; added > 2 {
			return
		}
		spec := f.nodes[node]["spec"].(map[string]any)
		spec["taints"] = append(spec["taints"].([]any), map[string]any{"key": fmt.Sprint("b", added), "effect": "NoSchedule"})
		f.changed(node)
	}
	mark(t, client, Marks{Taint: faulty.Taint})
	got := f.taints()
	for _, key := range []string{`"a"`, `"b1"`, `"b2"`, `"gpucdi.dev/gpu-fault"`} {
		if !strings.Contains(got, key) {
			t.Errorf("taints %s lack %s", got, key)
		}
	}
	f.before = func(node string) { f.changed(node) } // endless conflicts end with an error
	if err := client.Mark(t.Context(), "node", Marks{}); statusCode(err) != http.StatusConflict {
		t.Errorf("error %v, want a conflict", err)
	}
}

// A refused condition does not prevent the taint, nor vice versa.
func TestPartlyRefusedMarks(t *testing.T) {
	f, client := serveMarks(t, "node")
	f.refuse["PATCH "+nodesPath+"/node/status"] = http.StatusForbidden
	if err := client.Mark(t.Context(), "node", faulty); !Refused(err) || !strings.Contains(f.taints(), "xid_48") {
		t.Errorf("error %v, taints %s", err, f.taints())
	}
	delete(f.refuse, "PATCH "+nodesPath+"/node/status")
	f.refuse["PATCH "+nodesPath+"/node"] = http.StatusForbidden
	if err := client.Mark(t.Context(), "node", Marks{Condition: faulty.Condition}); !Refused(err) || f.condition("status") != "False" {
		t.Errorf("error %v, condition %v", err, f.condition("status"))
	}
	f.refuse["GET "+nodesPath+"/node"] = http.StatusServiceUnavailable
	if err := client.Mark(t.Context(), "node", faulty); err == nil || Refused(err) {
		t.Errorf("error %v, want a temporary one", err)
	}
}

func TestLongConditionMessage(t *testing.T) {
	f, client := serveMarks(t, "node")
	long := Marks{Condition: &Condition{Message: strings.Repeat("ü\x1b", 2000)}}
	mark(t, client, long)
	if got := f.condition("message").(string); len(got) > conditionMessageLimit || strings.ContainsRune(got, 0x1b) {
		t.Errorf("message of %d bytes: %.20q", len(got), got)
	}
	f.writes = nil
	if mark(t, client, long); len(f.writes) != 0 {
		t.Errorf("the same message is written again: %q", f.writes)
	}
}

func TestRemoveMarks(t *testing.T) {
	f, client := serveMarks(t, "node", "unmarked")
	mark(t, client, faulty)
	f.writes = nil
	if err := client.RemoveMarks(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := f.taints(); got != "["+foreignTaint+"]" || f.condition("status") != nil {
		t.Errorf("taints %s, condition %v", got, f.condition("status"))
	}
	if strings.Contains(fmt.Sprint(f.writes), "unmarked") {
		t.Errorf("writes %q", f.writes)
	}
}
