package status_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gpucdi/gpucdi/status"
)

// dial opens a connection, sends text, and bounds the wait for what comes back.
func dial(t *testing.T, address, text string) net.Conn {
	t.Helper()
	conn, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	if err := conn.SetDeadline(time.Now().Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	_, _ = io.WriteString(conn, text) // the server may have hung up
	return conn
}

// well is a server of an agent that is well.
func well() *status.Server {
	return &status.Server{
		Node:  func(context.Context) status.Node { return status.Node{Name: "node"} },
		Ready: func() error { return nil },
		Alive: func(context.Context) error { return nil },
	}
}

// Connections that do nothing are replaced by newer ones, the oldest first.
func TestTheNewestConnectionIsServed(t *testing.T) {
	address := serve(t, well())
	get(t, address, "/healthz")
	var idle []net.Conn
	for range 200 {
		idle = append(idle, dial(t, address, ""))
	}
	if code, _ := get(t, address, "/healthz"); code != http.StatusOK {
		t.Errorf("it answers %d", code)
	}
	open, since := 0, time.Now() // long before the server closes them for doing nothing
	for i, conn := range idle {
		if err := conn.SetReadDeadline(since.Add(time.Second)); err != nil {
			t.Fatal(err)
		}
		_, err := conn.Read(make([]byte, 1))
		switch still := errors.Is(err, os.ErrDeadlineExceeded); {
		case still:
			open++
		case open > 0:
			t.Errorf("connection %d is closed, and an older one is open", i)
		}
	}
	if open == 0 || open > 128 {
		t.Errorf("%d of %d idle connections are open", open, len(idle))
	}
}

// A request is small and has no body; another one takes no memory and no answer.
func TestLargeRequests(t *testing.T) {
	address := serve(t, well())
	get(t, address, "/healthz")
	for name, text := range map[string]string{
		"a long header":  "GET /status HTTP/1.1\r\nHost: node\r\nX-Long: " + strings.Repeat("x", 64<<10) + "\r\n\r\n",
		"a long URL":     "GET /" + strings.Repeat("x", 64<<10) + " HTTP/1.1\r\nHost: node\r\n\r\n",
		"many headers":   "GET /status HTTP/1.1\r\nHost: node\r\n" + strings.Repeat("A: b\r\n", 64<<10) + "\r\n",
		"a body":         "POST /status HTTP/1.1\r\nHost: node\r\nContent-Length: 1000000\r\n\r\nxxx",
		"a chunked body": "GET /status HTTP/1.1\r\nHost: node\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nxxx\r\n",
	} {
		t.Run(name, func(t *testing.T) {
			answer, _ := io.ReadAll(dial(t, address, text)) // to its end, which may be a reset
			if strings.Contains(string(answer), "200 OK") {
				t.Errorf("it is answered with %q", answer)
			}
		})
	}
}

// A connection has one request: a second one on it is not read.
func TestOneRequestPerConnection(t *testing.T) {
	address := serve(t, well())
	get(t, address, "/healthz")
	const request = "GET /healthz HTTP/1.1\r\nHost: node\r\n\r\n"
	answer, err := io.ReadAll(dial(t, address, request+request))
	if err != nil || strings.Count(string(answer), "200 OK") != 1 {
		t.Errorf("%v: it is answered with %q", err, answer)
	}
}

// large is a node whose status is far larger than the buffers of a connection.
func large(context.Context) status.Node {
	n := status.Node{Name: "node"}
	for i := range 5000 {
		n.Devices = append(n.Devices, status.Device{ID: fmt.Sprintf("GPU-%0100d", i)})
	}
	return n
}

// A client that reads slowly receives everything, and those that read nothing keep
// nobody from an answer.
func TestSlowReaders(t *testing.T) {
	s := well()
	s.Node = large
	address := serve(t, s)
	get(t, address, "/healthz")
	const request = "GET /status HTTP/1.1\r\nHost: node\r\n\r\n"
	for range 100 {
		dial(t, address, request)
	}
	slow := dial(t, address, request)
	response, err := http.ReadResponse(bufio.NewReaderSize(slow, 512), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	var n status.Node
	if err := json.NewDecoder(response.Body).Decode(&n); err != nil || len(n.Devices) != 5000 {
		t.Errorf("%d devices, %v", len(n.Devices), err)
	}
	if code, _ := get(t, address, "/healthz"); code != http.StatusOK {
		t.Errorf("it answers %d", code)
	}
}

// However many ask at once, the agent makes one response at a time.
func TestOneResponseAtATime(t *testing.T) {
	var now, most atomic.Int32
	s := well()
	s.Metrics = http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		most.Store(max(most.Load(), now.Add(1)))
		time.Sleep(time.Millisecond)
		now.Add(-1)
		w.Header().Set("Content-Type", "text/plain")
		w.WriteHeader(http.StatusTeapot)
		_, _ = io.WriteString(w, "metrics")
	})
	address := serve(t, s)
	get(t, address, "/healthz")
	var all sync.WaitGroup
	for range 100 {
		all.Go(func() {
			response, err := http.Get("http://" + address + "/metrics")
			if err != nil {
				t.Error(err)
				return
			}
			defer response.Body.Close()
			body, err := io.ReadAll(response.Body)
			if err != nil || string(body) != "metrics" || response.StatusCode != http.StatusTeapot || response.Header.Get("Content-Type") != "text/plain" {
				t.Errorf("it answers %s %v %q, %v", response.Status, response.Header, body, err)
			}
		})
	}
	all.Wait()
	if most.Load() != 1 {
		t.Errorf("%d were made at a time", most.Load())
	}
}
