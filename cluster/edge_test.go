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
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// pipes returns a dialer whose peer is handled by serve, without a network, so
// that a synctest bubble can wait for it.
func pipes(serve func(net.Conn)) func(context.Context, string, string) (net.Conn, error) {
	return func(context.Context, string, string) (net.Conn, error) {
		client, server := net.Pipe()
		go serve(server)
		return client, nil
	}
}

// discard reads and answers nothing until the client hangs up.
func discard(conn net.Conn) { _, _ = io.Copy(io.Discard, conn) }

// answer sends text at the first request, and then nothing more.
func answer(text string) func(net.Conn) {
	return func(conn net.Conn) {
		_, _ = conn.Read(make([]byte, 4096))
		_, _ = io.WriteString(conn, text)
		discard(conn)
	}
}

// A peer that stops answering, at whatever point, ends each request.
func TestSilentServer(t *testing.T) {
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
		"no event":         {"http", pipes(answer("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")), 0},
		"no second event":  {"http", pipes(answer(chunk)), 1},
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
						t.Errorf("the watch ends with %v after %d events, want an error after %d", err, events, tc.events)
					}
				case <-time.After(time.Hour):
					t.Error("the watch is still waiting after an hour")
				}
			})
		})
	}
}

// The API server is asked to end the watch before the client gives up on it.
func TestWatchAsksForItsEnd(t *testing.T) {
	s := newServer(t)
	api := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		if got, want := r.URL.Query().Get("timeoutSeconds"), "300"; got != want {
			t.Errorf("timeoutSeconds is %q, want %q", got, want)
		}
	}))
	defer api.Close()
	s.client.host = api.URL
	if err := s.client.WatchLabels(t.Context(), "node", func(map[string]string) {}); err != nil {
		t.Error(err)
	}
}

// endless sends a JSON string that never ends, and stops only when the client
// does, or far beyond what a client may read.
func endless(w http.ResponseWriter, head string) {
	const far = 256 << 20
	_, _ = io.WriteString(w, head)
	block := strings.Repeat("x", 1<<20)
	for range far >> 20 {
		if _, err := io.WriteString(w, block); err != nil {
			return
		}
	}
}

// What the API server sends is bounded in memory, whatever it is.
func TestLyingServer(t *testing.T) {
	for name, tc := range map[string]struct {
		handler http.HandlerFunc
		says    string
	}{
		"an event without end": {func(w http.ResponseWriter, _ *http.Request) {
			endless(w, `{"type":"ADDED","object":{"metadata":{"labels":{"a":"`)
		}, "exceeds"},
		"an error without end": {func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(http.StatusForbidden)
			endless(w, `{"kind":"Status","message":"`)
		}, "403"},
		"an error event of megabytes": {func(w http.ResponseWriter, _ *http.Request) {
			fmt.Fprintf(w, `{"type":"ERROR","object":{"message":"%s"}}`, strings.Repeat("x", 2<<20))
		}, "xxx"},
		"a header without end": {func(w http.ResponseWriter, _ *http.Request) {
			for i := range 1000 {
				w.Header().Set(fmt.Sprintf("X-%d", i), strings.Repeat("x", 10<<10))
			}
		}, "header"},
		"a redirect": {func(w http.ResponseWriter, _ *http.Request) {
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
			if err == nil || !strings.Contains(err.Error(), tc.says) || len(err.Error()) > 2000 {
				t.Errorf("the error is %.2000v, want %q", err, tc.says)
			}
			if took := allocated() - before; took > 64<<20 {
				t.Errorf("it took %d MiB", took>>20)
			}
		})
	}
}

// allocated is how many bytes were ever allocated.
func allocated() uint64 {
	var stats runtime.MemStats
	runtime.ReadMemStats(&stats)
	return stats.TotalAlloc
}

// A flood of events is taken in slowly, and the latest labels still arrive.
func TestFloodOfEvents(t *testing.T) {
	const sent = 10_000
	var text strings.Builder
	for i := range sent {
		fmt.Fprintf(&text, `{"type":"MODIFIED","object":{"metadata":{"labels":{"a":"%d"}}}}`+"\n", i)
	}
	credentials := newServer(t).client.credentials
	synctest.Test(t, func(t *testing.T) {
		client := &Client{host: "http://api", credentials: credentials, dial: pipes(answer("HTTP/1.0 200 OK\r\n\r\n" + text.String()))}
		events := 0
		_ = client.WatchLabels(t.Context(), "node", func(map[string]string) { events++ })
		if events == 0 || events > sent/10 {
			t.Errorf("%d of %d events were delivered in one watch", events, sent)
		}
	})
}

// nodes is an API server with so many labelled nodes. refuse is the status with which
// it answers a change of a node; 0 is a success.
func nodes(t *testing.T, count int, refuse func(node string) int) (client *Client, changed map[string]bool) {
	t.Helper()
	s := newServer(t)
	changed = map[string]bool{}
	api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if node, one := strings.CutPrefix(r.URL.Path, nodesPath+"/"); one {
			changed[node] = true
			if code := refuse(node); code != 0 {
				w.WriteHeader(code)
			}
			return
		}
		listNodes(w, r, count)
	}))
	t.Cleanup(api.Close)
	s.client.host = api.URL
	return s.client, changed
}

// listNodes answers with the part of the nodes that is asked for, as the API server does.
func listNodes(w http.ResponseWriter, r *http.Request, count int) {
	first, limit := 0, count
	_, _ = fmt.Sscan(r.URL.Query().Get("continue"), &first)
	_, _ = fmt.Sscan(r.URL.Query().Get("limit"), &limit)
	if limit > 500 {
		http.Error(w, "too many nodes in one response", http.StatusInternalServerError)
		return
	}
	var list nodePage
	for i := first; i < min(first+limit, count); i++ {
		var n labelled
		n.Metadata.Name = fmt.Sprint("node-", i)
		list.Items = append(list.Items, n)
	}
	if first+limit < count {
		list.Metadata.Continue = fmt.Sprint(first + limit)
	}
	_ = json.NewEncoder(w).Encode(list)
}

// The labels of a large cluster are removed, with the list in pages. A node that is
// refused keeps no other from it; when all are, or the API server fails, it ends soon.
func TestRemoveLabels(t *testing.T) {
	for name, tc := range map[string]struct {
		count, changed int
		refuse         func(node string) int
		says           string
	}{
		"all": {1250, 1250, func(string) int { return 0 }, ""},
		"one refused": {20, 20, func(node string) int {
			if node == "node-3" {
				return http.StatusForbidden
			}
			return 0
		}, "node-3"},
		"all refused": {1250, 10, func(string) int { return http.StatusForbidden }, "1240 of 1250 nodes left"},
		"no answer":   {1250, 1, func(string) int { return http.StatusServiceUnavailable }, "1249 of 1250 nodes left"},
	} {
		t.Run(name, func(t *testing.T) {
			client, changed := nodes(t, tc.count, tc.refuse)
			err := client.RemoveLabels(t.Context(), "label")
			if (err == nil) != (tc.says == "") || err != nil && !strings.Contains(err.Error(), tc.says) {
				t.Errorf("the error is %v, want %q", err, tc.says)
			}
			if len(changed) != tc.changed {
				t.Errorf("%d nodes were changed, want %d", len(changed), tc.changed)
			}
		})
	}
}

// A list that never ends is an error.
func TestListWithoutEnd(t *testing.T) {
	for name, handler := range map[string]http.HandlerFunc{
		"one page": func(w http.ResponseWriter, _ *http.Request) { endless(w, `{"items":[{"metadata":{"name":"`) },
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
