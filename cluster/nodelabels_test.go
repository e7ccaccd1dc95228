package cluster

import (
	"context"
	"encoding/json"
	"log/slog"
	"maps"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// labelsTest is a NodeLabels that runs in a synctest bubble.
type labelsTest struct {
	*testing.T
	labels *NodeLabels
	api    *fakeAPI
	log    logLines

	mu      sync.Mutex
	code    int // of responses
	node    map[string]string
	patches int
}

// testNodeLabels runs a test in a bubble. Changes of the label "version" are routine, as is the removal of all.
func testNodeLabels(t *testing.T, test func(t *labelsTest)) {
	t.Helper()
	credentials := testCredentials(t)
	synctest.Test(t, func(t *testing.T) {
		api, stop := newFakeAPI(t, credentials)
		defer stop()
		l := &labelsTest{T: t, api: api, log: make(logLines, 100), code: http.StatusOK}
		api.before = l.patch
		routine := func(before, after map[string]string) bool {
			return len(after) == 0 || len(before) > 0 && before["count"] == after["count"]
		}
		l.labels = NewNodeLabels(api.client, "node", routine, slog.New(slog.NewTextHandler(l.log, nil)))
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() {
			l.labels.Run(ctx)
			close(ended)
		}()
		defer func() {
			cancel()
			<-ended
		}()
		test(l)
	})
}

func (t *labelsTest) patch(w http.ResponseWriter, r *http.Request) bool {
	var n nodeMetadata
	if err := json.NewDecoder(r.Body).Decode(&n); err != nil {
		t.Error(err)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.patches++
	w.WriteHeader(t.code)
	if t.code == http.StatusOK {
		t.node = n.Metadata.Labels
	}
	return true
}

func (t *labelsTest) respond(code int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.code = code
}

// want checks the labels of the node after a time, and the number of requests since the last check.
func (t *labelsTest) want(after time.Duration, labels map[string]string, patches int) {
	t.Helper()
	time.Sleep(after)
	synctest.Wait()
	t.mu.Lock()
	defer t.mu.Unlock()
	if !maps.Equal(t.node, labels) || t.patches != patches {
		t.Errorf("node has labels %v after %d requests, want %v after %d", t.node, t.patches, labels, patches)
	}
	t.patches = 0
}

// takePatches returns the number of requests since the last check.
func (t *labelsTest) takePatches() int {
	synctest.Wait()
	t.mu.Lock()
	defer t.mu.Unlock()
	n := t.patches
	t.patches = 0
	return n
}

// nextSlot waits until just after the next slot of the client.
func (t *labelsTest) nextSlot() { time.Sleep(t.api.client.untilSlot(0) + time.Millisecond) }

func version(version string) map[string]string {
	return map[string]string{"count": "8", "version": version}
}

// The first labels, and changes of the label "count", are applied immediately, others in the next slot.
func TestNodeLabels(t *testing.T) {
	testNodeLabels(t, func(t *labelsTest) {
		t.want(time.Hour, nil, 0)
		t.labels.Want(version("1"))
		t.want(0, version("1"), 1)
		t.nextSlot()
		t.want(0, version("1"), 1)

		t.labels.Want(version("2"))
		t.want(DefaultSpread-time.Second, version("1"), 0)
		t.want(time.Second, version("2"), 1)

		t.labels.Want(map[string]string{"count": "7", "version": "2"})
		t.want(0, map[string]string{"count": "7", "version": "2"}, 1)
		t.nextSlot()
		t.want(0, map[string]string{"count": "7", "version": "2"}, 1)
		t.labels.Want(version("2"))
		t.want(0, version("2"), 1)
	})
}

// A driver upgrade removes the labels and sets them again. Both changes wait for a slot. If a slot occurs while the
// driver is gone, the labels are removed in that slot and set in the next one.
func TestNodeLabelsRemoved(t *testing.T) {
	testNodeLabels(t, func(t *labelsTest) {
		t.labels.Want(version("1"))
		t.want(0, version("1"), 1)
		t.nextSlot()
		t.want(0, version("1"), 1)
		t.labels.Want(nil)
		t.labels.Want(version("2"))
		t.want(DefaultSpread, version("2"), 1)

		t.labels.Want(nil)
		t.want(DefaultSpread, nil, 1)
		t.labels.Want(version("3"))
		t.want(time.Minute, nil, 0)
		t.want(DefaultSpread, version("3"), 1)
		t.labels.Want(nil)
		t.want(DefaultSpread, nil, 1)
		t.labels.Want(map[string]string{"count": "4"})
		t.want(0, map[string]string{"count": "4"}, 1)
	})
}

// Failures are retried with a backoff. A refused removal of labels is not a failure.
func TestNodeLabelsFailures(t *testing.T) {
	testNodeLabels(t, func(t *labelsTest) {
		t.nextSlot() // so that no slot occurs during the test
		t.respond(http.StatusForbidden)
		t.labels.Want(nil)
		t.want(time.Second, nil, 1)
		t.labels.Want(version("1"))
		time.Sleep(time.Minute)
		if n := t.takePatches(); n < 5 || n > 10 {
			t.Errorf("%d requests in a minute", n)
		}
		for _, want := range []string{`level=INFO msg="node labels not removed"`, `level=WARN msg="node labels not updated, will retry"`} {
			if line := <-t.log; !strings.Contains(line, want) {
				t.Errorf("log %s, want %s", line, want)
			}
		}
		t.respond(http.StatusOK)
		time.Sleep(time.Minute)
		t.takePatches()
		t.want(0, version("1"), 0)
	})
}

// A refused removal of labels is logged once, and as a warning if labels are left on the node.
func TestNodeLabelsRefusedRemoval(t *testing.T) {
	testNodeLabels(t, func(t *labelsTest) {
		logged := func(level string) {
			t.Helper()
			if len(t.log) != 1 {
				t.Fatalf("%d lines logged, want 1", len(t.log))
			}
			if line := <-t.log; !strings.Contains(line, "level="+level+" msg=\"node labels not removed\"") || !strings.Contains(line, "403") {
				t.Errorf("log %s", line)
			}
		}
		t.respond(http.StatusForbidden)
		t.labels.Want(nil)
		t.want(time.Hour, nil, 13)
		logged("INFO")
		t.respond(http.StatusOK)
		t.labels.Want(version("1"))
		t.want(DefaultSpread, version("1"), 2)
		t.respond(http.StatusForbidden)
		t.labels.Want(nil)
		t.want(time.Hour, version("1"), 12)
		logged("WARN")
	})
}
