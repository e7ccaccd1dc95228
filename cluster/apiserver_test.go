package cluster

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// pipes returns a dialer whose connections are handled by serve, without a network, so that they work in a synctest
// bubble.
func pipes(serve func(net.Conn)) func(context.Context, string, string) (net.Conn, error) {
	return func(context.Context, string, string) (net.Conn, error) {
		client, server := net.Pipe()
		go serve(server)
		return client, nil
	}
}

// discard reads and never responds, until the client closes the connection.
func discard(conn net.Conn) { _, _ = io.Copy(io.Discard, conn) }

// respond sends text in response to the first request, and nothing after it.
func respond(text string) func(net.Conn) {
	return func(conn net.Conn) {
		_, _ = conn.Read(make([]byte, 4096))
		_, _ = io.WriteString(conn, text)
		discard(conn)
	}
}

// A watch ends if the API server stops responding at any step.
func TestUnresponsiveServer(t *testing.T) {
	const event = `{"type":"ADDED","object":{"metadata":{"labels":{"a":"1"}}}}` + "\n"
	chunk := fmt.Sprintf("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n", len(event), event)
	credentials := newServer(t).client.credentials
	for name, tc := range map[string]struct {
		scheme string
		dial   func(context.Context, string, string) (net.Conn, error)
		events int
	}{
		"no connection": {"http", func(ctx context.Context, _, _ string) (net.Conn, error) {
			<-ctx.Done()
			return nil, ctx.Err()
		}, 0},
		"no TLS handshake": {"https", pipes(discard), 0},
		"no header":        {"http", pipes(discard), 0},
		"no event":         {"http", pipes(respond("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")), 0},
		"no second event":  {"http", pipes(respond(chunk)), 1},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				client := &Client{host: tc.scheme + "://api", credentials: credentials, dial: tc.dial}
				events, ended := 0, make(chan error, 1)
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				go func() {
					ended <- client.WatchLabels(ctx, "node", func(map[string]string) { events++ })
				}()
				select {
				case err := <-ended:
					if err == nil || events != tc.events {
						t.Errorf("WatchLabels = %v after %d events, want an error after %d", err, events, tc.events)
					}
				case <-time.After(time.Hour):
					t.Error("the watch has not ended after an hour")
				}
			})
		})
	}
}

// The API server ends a watch before the client considers the connection dead.
func TestWatchTimeoutParameter(t *testing.T) {
	s := newServer(t)
	api := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		got := r.URL.Query().Get("timeoutSeconds")
		if seconds, err := strconv.Atoi(got); err != nil || seconds < int(minWatch.Seconds()) || seconds > int((minWatch+minSpread).Seconds()) {
			t.Errorf("timeoutSeconds is %q, want the next slot after %s", got, minWatch)
		}
	}))
	defer api.Close()
	s.client.host = api.URL
	if err := s.client.WatchLabels(t.Context(), "node", func(map[string]string) {}); err != nil {
		t.Error(err)
	}
}

// endless sends a JSON string without end, until the client closes the connection or far more than it accepts is sent.
func endless(w http.ResponseWriter, head string) {
	const limit = 256 << 20
	_, _ = io.WriteString(w, head)
	block := strings.Repeat("x", 1<<20)
	for range limit >> 20 {
		if _, err := io.WriteString(w, block); err != nil {
			return
		}
	}
}

// The memory for a response is bounded, whatever the API server sends. Redirects are not followed.
func TestOversizedResponses(t *testing.T) {
	for name, tc := range map[string]struct {
		handler http.HandlerFunc
		want    string
	}{
		"endless event": {func(w http.ResponseWriter, _ *http.Request) {
			endless(w, `{"type":"ADDED","object":{"metadata":{"labels":{"a":"`)
		}, "exceeds"},
		"endless error": {func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(http.StatusForbidden)
			endless(w, `{"kind":"Status","message":"`)
		}, "403"},
		"large error event": {func(w http.ResponseWriter, _ *http.Request) {
			fmt.Fprintf(w, `{"type":"ERROR","object":{"message":"%s"}}`, strings.Repeat("x", 2<<20))
		}, "xxx"},
		"large headers": {func(w http.ResponseWriter, _ *http.Request) {
			for i := range 1000 {
				w.Header().Set(fmt.Sprintf("X-%d", i), strings.Repeat("x", 10<<10))
			}
		}, "header"},
		"redirect": {func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Location", "http://127.0.0.1:1/api/v1/nodes")
			w.WriteHeader(http.StatusFound)
		}, "302"},
	} {
		t.Run(name, func(t *testing.T) {
			s := newServer(t)
			api := httptest.NewServer(tc.handler)
			defer api.Close()
			s.client.host = api.URL
			before := allocated()
			err := s.client.WatchLabels(t.Context(), "node", func(map[string]string) {})
			if err == nil || !strings.Contains(err.Error(), tc.want) || len(err.Error()) > 2000 {
				t.Errorf("error %.2000v, want %q", err, tc.want)
			}
			if took := allocated() - before; took > 64<<20 {
				t.Errorf("allocated %d MiB", took>>20)
			}
		})
	}
}

// allocated returns the cumulative bytes allocated.
func allocated() uint64 {
	var stats runtime.MemStats
	runtime.ReadMemStats(&stats)
	return stats.TotalAlloc
}

// The rate of watch events is limited.
func TestEventRateLimit(t *testing.T) {
	const sent = 10_000
	var text strings.Builder
	for i := range sent {
		fmt.Fprintf(&text, `{"type":"MODIFIED","object":{"metadata":{"labels":{"a":"%d"}}}}`+"\n", i)
	}
	credentials := newServer(t).client.credentials
	synctest.Test(t, func(t *testing.T) {
		dial := pipes(respond("HTTP/1.0 200 OK\r\n\r\n" + text.String()))
		client := &Client{host: "http://api", credentials: credentials, dial: dial}
		events := 0
		_ = client.WatchLabels(t.Context(), "node", func(map[string]string) { events++ })
		if events == 0 || events > sent/10 {
			t.Errorf("%d of %d events delivered in one watch", events, sent)
		}
	})
}

// serveNodes starts an API server with count labeled nodes. status returns the status of the response to a patch of
// a node; 0 is success.
func serveNodes(t *testing.T, count int, status func(node string) int) (client *Client, patched map[string]bool) {
	t.Helper()
	s := newServer(t)
	patched = map[string]bool{}
	api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if node, ok := strings.CutPrefix(r.URL.Path, nodesPath+"/"); ok {
			patched[node] = true
			if code := status(node); code != 0 {
				w.WriteHeader(code)
			}
			return
		}
		listNodes(w, r, count)
	}))
	t.Cleanup(api.Close)
	s.client.host = api.URL
	return s.client, patched
}

// listNodes responds with a page of nodes.
func listNodes(w http.ResponseWriter, r *http.Request, count int) {
	first, limit := 0, count
	_, _ = fmt.Sscan(r.URL.Query().Get("continue"), &first)
	_, _ = fmt.Sscan(r.URL.Query().Get("limit"), &limit)
	if limit > 500 {
		http.Error(w, "too many nodes in one response", http.StatusInternalServerError)
		return
	}
	var list page[nodeMetadata]
	for i := first; i < min(first+limit, count); i++ {
		var n nodeMetadata
		n.Metadata.Name = fmt.Sprint("node-", i)
		list.Items = append(list.Items, n)
	}
	if first+limit < count {
		list.Metadata.Continue = fmt.Sprint(first + limit)
	}
	_ = json.NewEncoder(w).Encode(list)
}

// RemoveLabels lists the nodes of a large cluster in pages. It continues after a refusal, but stops after several or if
// the API server fails.
func TestRemoveLabels(t *testing.T) {
	for name, tc := range map[string]struct {
		count, patched int
		status         func(node string) int
		want           string
	}{
		"all": {1250, 1250, func(string) int { return 0 }, ""},
		"one refused": {20, 20, func(node string) int {
			if node == "node-3" {
				return http.StatusForbidden
			}
			return 0
		}, "node-3"},
		"all refused": {1250, 10, func(string) int { return http.StatusForbidden }, "1240 of 1250 nodes left"},
		"unavailable": {1250, 1, func(string) int { return http.StatusServiceUnavailable }, "1249 of 1250 nodes left"},
	} {
		t.Run(name, func(t *testing.T) {
			client, patched := serveNodes(t, tc.count, tc.status)
			err := client.RemoveLabels(t.Context(), "label")
			if (err == nil) != (tc.want == "") || err != nil && !strings.Contains(err.Error(), tc.want) {
				t.Errorf("error %v, want %q", err, tc.want)
			}
			if len(patched) != tc.patched {
				t.Errorf("%d nodes patched, want %d", len(patched), tc.patched)
			}
		})
	}
}

// An endless list is an error.
func TestEndlessList(t *testing.T) {
	for name, handler := range map[string]http.HandlerFunc{
		"page": func(w http.ResponseWriter, _ *http.Request) { endless(w, `{"items":[{"metadata":{"name":"`) },
		"pages": func(w http.ResponseWriter, _ *http.Request) {
			fmt.Fprint(w, `{"metadata":{"continue":"more"},"items":[{"metadata":{"name":"node"}}]}`)
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := newServer(t)
			api := httptest.NewServer(handler)
			defer api.Close()
			s.client.host = api.URL
			if err := s.client.RemoveLabels(t.Context(), "label"); err == nil || !strings.Contains(err.Error(), "exceeds") {
				t.Error(err)
			}
		})
	}
}
