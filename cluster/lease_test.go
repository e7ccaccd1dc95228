package cluster

import (
	"encoding/json"
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
		f.lease.Spec.Holder = ""
	}
	f.before = nil
	failing := serve(t, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusServiceUnavailable) })
	if held, err := NewLease(failing, "gpucdi", "templates", "a").Renew(t.Context()); held || err == nil || !strings.Contains(err.Error(), "lease gpucdi/templates") {
		t.Errorf("held %t, error %v", held, err)
	}
}
