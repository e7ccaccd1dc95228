package cluster

import (
	"context"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// call is a request to the API server.
type call struct {
	method, path, contentType, token string
	body                             map[string]any
}

// server is an API server that passes each request to the test, which chooses the status of the response.
type server struct {
	client *Client
	calls  chan call
	status chan int
}

func newServer(t *testing.T) *server {
	t.Helper()
	s := &server{calls: make(chan call), status: make(chan int)}
	tls := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		data, err := io.ReadAll(r.Body)
		if err != nil {
			t.Error(err)
		}
		c := call{
			method: r.Method, path: r.URL.Path,
			contentType: r.Header.Get("Content-Type"), token: r.Header.Get("Authorization"),
		}
		if err := json.Unmarshal(data, &c.body); err != nil {
			t.Error(err)
		}
		s.calls <- c
		switch status := <-s.status; status {
		case http.StatusConflict:
			failure(w, status, "AlreadyExists")
		default:
			w.WriteHeader(status)
		}
	}))
	t.Cleanup(tls.Close)
	dir := t.TempDir()
	authority := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: tls.Certificate().Raw})
	if err := os.WriteFile(filepath.Join(dir, "ca.crt"), authority, 0o600); err != nil {
		t.Fatal(err)
	}
	s.client = &Client{host: tls.URL, credentials: dir, Spread: minSpread}
	s.setToken(t, "first")
	return s
}

// setToken replaces the token of the service account.
func (s *server) setToken(t *testing.T, token string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(s.client.credentials, "token"), []byte(token+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
}

// next returns the next request and responds to it.
func (s *server) next(t *testing.T, status int) call {
	t.Helper()
	select {
	case c := <-s.calls:
		s.status <- status
		return c
	case <-time.After(30 * time.Second):
		t.Fatal("no request")
		return call{}
	}
}

// startRecorder runs a recorder until the test ends.
func startRecorder(t *testing.T, client *Client, log io.Writer) *EventRecorder {
	t.Helper()
	r := NewEventRecorder("node", client, nodeEvents, slog.New(slog.NewTextHandler(log, nil)))
	r.pause = time.Millisecond
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		r.Run(ctx)
		close(ended)
	}()
	t.Cleanup(func() {
		cancel()
		<-ended
	})
	return r
}

// nodeEvents is the interval between Events of a node.
const nodeEvents = 10 * time.Second

const events = "/api/v1/namespaces/default/events"

var unhealthy = Event{Type: Warning, Reason: "GPUUnhealthy", Message: "GPU 5 is unhealthy: XID 79"}

func TestRecord(t *testing.T) {
	s := newServer(t)
	r := startRecorder(t, s.client, io.Discard)

	r.Record(unhealthy)
	created := s.next(t, http.StatusCreated)
	if created.method != http.MethodPost || created.path != events || created.contentType != "application/json" ||
		created.token != "Bearer first" {
		t.Errorf("created by %+v", created)
	}
	got := fmt.Sprintln(created.body["involvedObject"], created.body["type"], created.body["reason"],
		created.body["message"], created.body["count"])
	want := "map[apiVersion:v1 kind:Node name:node uid:node] Warning GPUUnhealthy GPU 5 is unhealthy: XID 79 1\n"
	if got != want {
		t.Errorf("Event %s, want %s", got, want)
	}
	name := created.body["metadata"].(map[string]any)["name"].(string)

	// A recurring Event increments the count.
	s.setToken(t, "second")
	for count := 2; count <= 3; count++ {
		r.Record(unhealthy)
		updated := s.next(t, http.StatusOK)
		if updated.method != http.MethodPatch || updated.path != events+"/"+name ||
			updated.contentType != "application/merge-patch+json" ||
			updated.body["count"] != float64(count) || updated.token != "Bearer second" {
			t.Errorf("updated by %+v", updated)
		}
	}

	// An expired Event is created again.
	r.Record(unhealthy)
	s.next(t, http.StatusNotFound)
	recreated := s.next(t, http.StatusCreated)
	if recreated.method != http.MethodPost || recreated.body["count"] != 1.0 {
		t.Errorf("created again by %+v", recreated)
	}

	// A different Event is created, with a truncated message.
	r.Record(Event{Type: Normal, Reason: "GPUHealthy", Message: strings.Repeat("long ", 1000)})
	other := s.next(t, http.StatusCreated)
	if other.method != http.MethodPost || len(other.body["message"].(string)) != messageLimit {
		t.Errorf("created by %+v", other)
	}
}

// An Event of a claim is in the namespace of the claim. A recurring one is created again: the agent may not update it.
func TestEventOfClaim(t *testing.T) {
	s := newServer(t)
	r := startRecorder(t, s.client, t.Output())
	for range 2 {
		r.Record(Event{Type: Normal, Reason: "CoresNotEnforced", Claim: ClaimRef{Namespace: "team", Name: "quarter", UID: "1-2"}})
		created := s.next(t, http.StatusCreated)
		namespace := created.body["metadata"].(map[string]any)["namespace"]
		got := fmt.Sprint(created.method, " ", created.path, " ", namespace, " ", created.body["involvedObject"], " ", created.body["reportingInstance"])
		want := "POST /api/v1/namespaces/team/events team map[apiVersion:resource.k8s.io/v1 kind:ResourceClaim name:quarter namespace:team uid:1-2] node"
		if got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	}
}

func TestRetry(t *testing.T) {
	s := newServer(t)
	r := startRecorder(t, s.client, io.Discard)
	r.Record(unhealthy)
	for range 30 { // as in an outage of minutes
		s.next(t, http.StatusServiceUnavailable)
	}
	s.next(t, http.StatusTooManyRequests)
	if c := s.next(t, http.StatusCreated); c.body["message"] != unhealthy.Message {
		t.Errorf("created by %+v", c)
	}
}

// An Event that is too old is dropped after one attempt, so that it does not delay the next one.
func TestOldEventIsDropped(t *testing.T) {
	s := newServer(t)
	log := make(logLines, queueSize)
	r := startRecorder(t, s.client, log)
	for status, age := range map[int]time.Duration{http.StatusServiceUnavailable: maxAge, http.StatusInternalServerError: maxFailingAge} {
		r.queue <- queuedEvent{unhealthy, time.Now().Add(-age)}
		s.next(t, status)
		if line := <-log; !strings.Contains(line, "Event dropped") {
			t.Errorf("log %s", line)
		}
	}
	r.Record(Event{Type: Normal, Reason: "GPUHealthy", Message: "GPU 5 recovered"})
	if c := s.next(t, http.StatusCreated); c.body["message"] != "GPU 5 recovered" {
		t.Errorf("next Event %+v", c)
	}
}

// If the response to a creation is lost, the retry has the same name and creates no second Event. The next occurrence
// increments its count.
func TestRetryAfterLostResponse(t *testing.T) {
	s := newServer(t)
	r := startRecorder(t, s.client, t.Output())
	name := func(c call) any { return c.body["metadata"].(map[string]any)["name"] }
	r.Record(unhealthy)
	first := s.next(t, http.StatusGatewayTimeout)
	second := s.next(t, http.StatusConflict)
	if name(first) != name(second) {
		t.Errorf("created as %s, then as %s", name(first), name(second))
	}
	r.Record(unhealthy)
	third := s.next(t, http.StatusOK)
	if third.method != http.MethodPatch || third.path != fmt.Sprint(events, "/", name(first)) || third.body["count"] != 2.0 {
		t.Errorf("updated by %+v", third)
	}
}

// A refused Event is dropped and logged with a remedy, and does not delay the next one.
func TestRefused(t *testing.T) {
	s := newServer(t)
	log := make(logLines, queueSize)
	r := startRecorder(t, s.client, log)
	r.Record(unhealthy)
	r.Record(Event{Type: Normal, Reason: "GPUHealthy", Message: "GPU 5 recovered"})
	s.next(t, http.StatusForbidden)
	line := <-log
	for _, part := range []string{"403", "deploy/", unhealthy.Message} {
		if !strings.Contains(line, part) {
			t.Errorf("log %s does not contain %q", line, part)
		}
	}
	if c := s.next(t, http.StatusCreated); c.body["message"] != "GPU 5 recovered" {
		t.Errorf("next Event %+v", c)
	}
}

// Record never blocks, even if Run does not run. Events above the queue size are dropped and logged.
func TestQueueFull(t *testing.T) {
	log := make(logLines, 10*queueSize)
	r := NewEventRecorder("node", &Client{}, nodeEvents, slog.New(slog.NewTextHandler(log, nil)))
	for i := range 2 * queueSize {
		r.Record(Event{Type: Warning, Reason: "GPUUnhealthy", Message: fmt.Sprint(i)})
	}
	if len(log) != queueSize {
		t.Errorf("%d Events dropped, want %d", len(log), queueSize)
	}
	var none *EventRecorder
	none.Record(unhealthy)
}

func TestNotInCluster(t *testing.T) {
	t.Setenv("KUBERNETES_SERVICE_HOST", "")
	if _, err := InCluster(); err == nil {
		t.Error("no error outside a cluster")
	}
}

// logLines receives each line of a log.
type logLines chan string

func (l logLines) Write(line []byte) (int, error) {
	l <- string(line)
	return len(line), nil
}

// Up to queueSize routine Events wait for the slot of the client and are sent in it; more are dropped. Other Events are
// sent immediately.
func TestRoutineEventsWait(t *testing.T) {
	credentials := testCredentials(t)
	synctest.Test(t, func(t *testing.T) {
		api, stop := newFakeAPI(t, credentials)
		defer stop()
		var mu sync.Mutex
		var reasons []string
		api.before = func(_ http.ResponseWriter, r *http.Request) bool {
			var e eventObject
			if err := json.NewDecoder(r.Body).Decode(&e); err != nil {
				t.Error(err)
			}
			mu.Lock()
			defer mu.Unlock()
			reasons = append(reasons, e.Reason)
			return true
		}
		r := startRecorder(t, api.client, t.Output())
		slot := api.client.untilSlot(0)
		for range 2 * queueSize {
			r.Record(Event{Type: Normal, Reason: "Later", Message: time.Now().String(), Routine: true})
			time.Sleep(time.Millisecond)
		}
		r.Record(Event{Type: Warning, Reason: "Now"})
		count := func(reason string) (n int) {
			mu.Lock()
			defer mu.Unlock()
			for _, r := range reasons {
				if r == reason {
					n++
				}
			}
			return n
		}
		synctest.Wait()
		if slot > time.Second && (count("Now") != 1 || count("Later") != 0) {
			t.Errorf("sent before the slot: %v", reasons)
		}
		time.Sleep(slot + 15*time.Minute)
		if got := count("Later"); got != queueSize {
			t.Errorf("%d routine Events sent, want %d", got, queueSize)
		}
	})
}
