package cluster

import (
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// fakeLeases is an API server with one lease.
type fakeLeases struct {
	mu      sync.Mutex
	lease   *leaseObject
	version int
	before  func() // called before a write, with mu held; may be nil
}

func (f *fakeLeases) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	f.mu.Lock()
	defer f.mu.Unlock()
	fail := func(code int, reason string) {
		w.WriteHeader(code)
		_ = json.NewEncoder(w).Encode(map[string]any{"kind": "Status", "reason": reason, "message": reason})
	}
	if r.Method != http.MethodGet && f.before != nil {
		f.before()
	}
	if r.Method == http.MethodGet {
		if f.lease == nil {
			fail(http.StatusNotFound, "NotFound")
			return
		}
		_ = json.NewEncoder(w).Encode(f.lease)
		return
	}
	var next leaseObject
	body, _ := io.ReadAll(r.Body)
	if err := json.Unmarshal(body, &next); err != nil || next.Kind != "Lease" {
		fail(http.StatusBadRequest, "BadRequest")
		return
	}
	switch {
	case r.Method == http.MethodPost && f.lease != nil:
		fail(http.StatusConflict, "AlreadyExists")
		return
	case r.Method == http.MethodPut && (f.lease == nil || f.lease.Metadata.ResourceVersion != next.Metadata.ResourceVersion):
		fail(http.StatusConflict, "Conflict")
		return
	}
	f.store(next)
	_ = json.NewEncoder(w).Encode(f.lease)
}

func (f *fakeLeases) store(l leaseObject) {
	f.version++
	l.Metadata.ResourceVersion = strconv.Itoa(f.version)
	f.lease = &l
}

// A lease has one holder, until it is released or not renewed for LeaseDuration.
func TestLease(t *testing.T) {
	f := &fakeLeases{}
	client := serve(t, f.ServeHTTP)
	first, second := NewLease(client, "gpucdi", "templates", "first"), NewLease(client, "gpucdi", "templates", "second")
	renews := func(l *Lease, want bool) {
		t.Helper()
		if held, err := l.Renew(t.Context()); err != nil || held != want {
			t.Errorf("lease of %s: held %t, error %v; want %t", l.holder, held, err, want)
		}
	}
	renews(first, true)
	renews(second, false)
	renews(first, true)
	renews(second, false)
	if s := f.lease.Spec; s.Holder != "first" || s.Seconds != 15 || s.Acquired == "" || s.Renewed == "" || s.Transitions != 1 {
		t.Errorf("stored %+v", s)
	}
	second.seenAt = time.Now().Add(-LeaseDuration) // it has seen no renewal since
	renews(second, true)
	renews(first, false)
	if err := first.Release(t.Context()); err != nil || f.lease.Spec.Holder != "second" {
		t.Errorf("released the lease of another process: error %v", err)
	}
	if err := second.Release(t.Context()); err != nil {
		t.Error(err)
	}
	renews(first, true)
}

// If another process is faster, the lease is not held.
func TestLeaseConflict(t *testing.T) {
	f := &fakeLeases{}
	client := serve(t, f.ServeHTTP)
	l := NewLease(client, "gpucdi", "templates", "first")
	f.before = func() {
		var other leaseObject
		other.Spec.Holder = "other"
		f.store(other)
	}
	for range 2 { // a creation and a replacement
		if held, err := l.Renew(t.Context()); err != nil || held {
			t.Errorf("held %t, error %v", held, err)
		}
		l.seenAt = time.Time{}
		f.lease.Spec.Holder = ""
	}
	f.before = nil
	failing := serve(t, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusServiceUnavailable) })
	if held, err := NewLease(failing, "gpucdi", "templates", "a").Renew(t.Context()); held || err == nil || !strings.Contains(err.Error(), "lease gpucdi/templates") {
		t.Errorf("held %t, error %v", held, err)
	}
}

// Pods are listed, then their changes are received.
func TestFollowPods(t *testing.T) {
	const waiting = `{"metadata":{"namespace":"n","name":"a","uid":"1"},"spec":{"resourceClaims":[{"name":"x","resourceClaimTemplateName":"t"},{"name":"y","resourceClaimName":"c"}]}}`
	const created = `{"metadata":{"namespace":"n","name":"a","uid":"1"},"spec":{"resourceClaims":[{"name":"x","resourceClaimTemplateName":"t"}]},"status":{"phase":"Failed","resourceClaimStatuses":[{"name":"x"}]}}`
	client := serve(t, func(w http.ResponseWriter, r *http.Request) {
		q := r.URL.Query()
		switch {
		case r.URL.Path != "/api/v1/pods" || q.Get("labelSelector") != "a=b":
			w.WriteHeader(http.StatusNotFound)
		case q.Get("watch") == "":
			_, _ = io.WriteString(w, `{"metadata":{"resourceVersion":"7"},"items":[`+waiting+`]}`)
		case q.Get("resourceVersion") != "7" || q.Has("limit"):
			w.WriteHeader(http.StatusBadRequest)
		default:
			_, _ = io.WriteString(w, `{"type":"MODIFIED","object":`+created+`}{"type":"DELETED","object":`+created+`}`)
		}
	})
	var got []ClaimingPod
	var deletions int
	err := client.FollowPods(t.Context(), "a=b", func(pods []ClaimingPod) { got = append(got, pods...) }, func(p ClaimingPod, deleted bool) {
		got = append(got, p)
		if deleted {
			deletions++
		}
	})
	if err != nil || len(got) != 3 || deletions != 1 {
		t.Fatalf("pods %+v, %d deletions, error %v", got, deletions, err)
	}
	if p := got[0]; !p.Waiting || p.Ended || len(p.Templates) != 1 || p.Templates[0] != "t" || p.Namespace != "n" || p.UID != "1" {
		t.Errorf("listed %+v", p)
	}
	if p := got[1]; p.Waiting || !p.Ended {
		t.Errorf("changed %+v", p)
	}
	if err := client.FollowPods(t.Context(), "c=d", nil, nil); err == nil || !strings.Contains(err.Error(), "pods with label c=d") {
		t.Errorf("error %v", err)
	}
}

func TestClaimTemplates(t *testing.T) {
	reply := http.StatusOK
	var path, body string
	client := serve(t, func(w http.ResponseWriter, r *http.Request) {
		data, _ := io.ReadAll(r.Body)
		path, body = r.Method+" "+r.URL.Path, string(data)
		w.WriteHeader(reply)
		reason := map[int]string{http.StatusConflict: "AlreadyExists", http.StatusNotFound: "NotFound"}[reply]
		_, _ = io.WriteString(w, `{"reason":"`+reason+`","items":[{"metadata":{"namespace":"n","name":"t","uid":"u"}}]}`)
	})
	all, err := client.ClaimTemplates(t.Context(), "a=b")
	if err != nil || len(all) != 1 || all[0].Metadata.Name != "t" {
		t.Errorf("templates %+v, error %v", all, err)
	}
	if err := client.CreateClaimTemplate(t.Context(), "n", map[string]string{"kind": "x"}); err != nil ||
		path != "POST /apis/resource.k8s.io/v1/namespaces/n/resourceclaimtemplates" || body != `{"kind":"x"}` {
		t.Errorf("error %v, %s %s", err, path, body)
	}
	if err := client.DeleteClaimTemplate(t.Context(), all[0]); err != nil ||
		path != "DELETE /apis/resource.k8s.io/v1/namespaces/n/resourceclaimtemplates/t" || !strings.Contains(body, `"uid":"u"`) {
		t.Errorf("error %v, %s %s", err, path, body)
	}
	reply = http.StatusConflict
	if err := client.CreateClaimTemplate(t.Context(), "n", nil); !errors.Is(err, ErrExists) {
		t.Errorf("error %v", err)
	}
	reply = http.StatusNotFound
	if err := client.DeleteClaimTemplate(t.Context(), all[0]); err != nil {
		t.Errorf("error %v", err)
	}
	reply = http.StatusForbidden
	if err := client.DeleteClaimTemplate(t.Context(), all[0]); err == nil || !Refused(err) {
		t.Errorf("error %v", err)
	}
}
