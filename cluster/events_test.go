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
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// call is a request as the API server gets it.
type call struct {
	method, path, contentType, token string
	body                             map[string]any
}

// server is an API server that gives out the requests and is told what to
// answer.
type server struct {
	client *Client
	calls  chan call
	answer chan int
}

func newServer(t *testing.T) *server {
	t.Helper()
	s := &server{calls: make(chan call), answer: make(chan int)}
	tls := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		data, err := io.ReadAll(r.Body)
		if err != nil {
			t.Error(err)
		}
		c := call{method: r.Method, path: r.URL.Path, contentType: r.Header.Get("Content-Type"), token: r.Header.Get("Authorization")}
		if err := json.Unmarshal(data, &c.body); err != nil {
			t.Error(err)
		}
		s.calls <- c
		w.WriteHeader(<-s.answer)
	}))
	t.Cleanup(tls.Close)
	dir := t.TempDir()
	authority := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: tls.Certificate().Raw})
	if err := os.WriteFile(filepath.Join(dir, "ca.crt"), authority, 0o600); err != nil {
		t.Fatal(err)
	}
	s.client = &Client{host: tls.URL, credentials: dir}
	s.renew(t, "first")
	return s
}

// renew gives the pod another token, as the kubelet does.
func (s *server) renew(t *testing.T, token string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(s.client.credentials, "token"), []byte(token+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
}

// next takes a request and answers it.
func (s *server) next(t *testing.T, answer int) call {
	t.Helper()
	select {
	case c := <-s.calls:
		s.answer <- answer
		return c
	case <-time.After(30 * time.Second):
		t.Fatal("the API server is not asked")
		return call{}
	}
}

// start runs Events of a node until the test ends.
func start(t *testing.T, client *Client, log io.Writer) *Events {
	t.Helper()
	e := NewEvents("node", client, slog.New(slog.NewTextHandler(log, nil)))
	e.pause = time.Millisecond
	ctx, end := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		e.Run(ctx)
		close(ended)
	}()
	t.Cleanup(func() {
		end()
		<-ended
	})
	return e
}

const events = "/api/v1/namespaces/default/events"

var sick = Event{Type: Warning, Reason: "GPUUnhealthy", Message: "GPU 5 is unhealthy: XID 79"}

func TestEvents(t *testing.T) {
	s := newServer(t)
	e := start(t, s.client, io.Discard)

	e.Record(sick)
	made := s.next(t, http.StatusCreated)
	if made.method != http.MethodPost || made.path != events || made.contentType != "application/json" || made.token != "Bearer first" {
		t.Errorf("it is made by %+v", made)
	}
	about := fmt.Sprintln(made.body["involvedObject"], made.body["type"], made.body["reason"], made.body["message"], made.body["count"])
	if want := "map[apiVersion:v1 kind:Node name:node uid:node] Warning GPUUnhealthy GPU 5 is unhealthy: XID 79 1\n"; about != want {
		t.Errorf("it is %s, want %s", about, want)
	}
	name := made.body["metadata"].(map[string]any)["name"].(string)

	// The same again is counted.
	s.renew(t, "second")
	for count := 2; count <= 3; count++ {
		e.Record(sick)
		again := s.next(t, http.StatusOK)
		if again.method != http.MethodPatch || again.path != events+"/"+name || again.contentType != "application/merge-patch+json" ||
			again.body["count"] != float64(count) || again.token != "Bearer second" {
			t.Errorf("it is counted by %+v", again)
		}
	}

	// An Event that the API server has forgotten is made anew.
	e.Record(sick)
	s.next(t, http.StatusNotFound)
	anew := s.next(t, http.StatusCreated)
	if anew.method != http.MethodPost || anew.body["count"] != 1.0 {
		t.Errorf("it is made anew by %+v", anew)
	}

	// Another is another.
	e.Record(Event{Type: Normal, Reason: "GPUHealthy", Message: strings.Repeat("long ", 1000)})
	other := s.next(t, http.StatusCreated)
	if other.method != http.MethodPost || len(other.body["message"].(string)) != messageLimit {
		t.Errorf("another is made by %+v", other)
	}
}

func TestTriesAgain(t *testing.T) {
	s := newServer(t)
	e := start(t, s.client, io.Discard)
	e.Record(sick)
	s.next(t, http.StatusServiceUnavailable)
	s.next(t, http.StatusTooManyRequests)
	if c := s.next(t, http.StatusCreated); c.body["message"] != sick.Message {
		t.Errorf("it is made by %+v", c)
	}
}

// A refusal is final, is said with what to do, and holds nothing up.
func TestRefused(t *testing.T) {
	s := newServer(t)
	log := make(lines, queued)
	e := start(t, s.client, log)
	e.Record(sick)
	e.Record(Event{Type: Normal, Reason: "GPUHealthy", Message: "well"})
	s.next(t, http.StatusForbidden)
	if said := <-log; !strings.Contains(said, "403") || !strings.Contains(said, "deploy/") || !strings.Contains(said, sick.Message) {
		t.Errorf("the log says %s", said)
	}
	if c := s.next(t, http.StatusCreated); c.body["message"] != "well" {
		t.Errorf("the next is %+v", c)
	}
}

// With an API server that is away, nobody waits; what does not fit is dropped
// and said.
func TestAway(t *testing.T) {
	log := make(lines, 10*queued)
	e := NewEvents("node", &Client{host: "https://127.0.0.1:1", credentials: t.TempDir()}, slog.New(slog.NewTextHandler(log, nil)))
	for i := range 2 * queued {
		e.Record(Event{Type: Warning, Reason: "GPUUnhealthy", Message: fmt.Sprint(i)})
	}
	if len(log) != queued {
		t.Errorf("%d are dropped, want %d", len(log), queued)
	}
	var nobody *Events
	nobody.Record(sick)
}

func TestNotInCluster(t *testing.T) {
	t.Setenv("KUBERNETES_SERVICE_HOST", "")
	if _, err := InCluster(); err == nil {
		t.Error("there is an API server without a cluster")
	}
}

// lines is a log that can be waited on.
type lines chan string

func (l lines) Write(line []byte) (int, error) {
	l <- string(line)
	return len(line), nil
}
