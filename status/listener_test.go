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

// dial opens a connection, sends text, and sets a deadline for the response.
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
	_, _ = io.WriteString(conn, text) // the server may have closed the connection
	return conn
}

// healthyServer is the server of a healthy agent.
func healthyServer() *status.Server {
	return &status.Server{
		Node:  func(context.Context) status.Node { return status.Node{Name: "node"} },
		Ready: func() error { return nil },
		Alive: func(context.Context) error { return nil },
	}
}

// New connections replace idle ones, the oldest first.
func TestNewestConnectionIsServed(t *testing.T) {
	address := serve(t, healthyServer())
	get(t, address, "/healthz")
	var idle []net.Conn
	for range 200 {
		idle = append(idle, dial(t, address, ""))
	}
	if code, _ := get(t, address, "/healthz"); code != http.StatusOK {
		t.Errorf("/healthz: status code %d", code)
	}
	open, since := 0, time.Now() // the server closes idle connections much later
	for i, conn := range idle {
		if err := conn.SetReadDeadline(since.Add(time.Second)); err != nil {
			t.Fatal(err)
		}
		_, err := conn.Read(make([]byte, 1))
		switch still := errors.Is(err, os.ErrDeadlineExceeded); {
		case still:
			open++
		case open > 0:
			t.Errorf("connection %d is closed while an older one is open", i)
		}
	}
	if open == 0 || open > 128 {
		t.Errorf("%d of %d idle connections are open", open, len(idle))
	}
}

// Requests that are large or have a body are refused.
func TestLargeRequests(t *testing.T) {
	address := serve(t, healthyServer())
	get(t, address, "/healthz")
	for name, text := range map[string]string{
		"a long header":  "GET /status HTTP/1.1\r\nHost: node\r\nX-Long: " + strings.Repeat("x", 64<<10) + "\r\n\r\n",
		"a long URL":     "GET /status?" + strings.Repeat("x", 64<<10) + " HTTP/1.1\r\nHost: node\r\n\r\n",
		"many headers":   "GET /status HTTP/1.1\r\nHost: node\r\n" + strings.Repeat("A: b\r\n", 64<<10) + "\r\n",
		"a body":         "GET /status HTTP/1.1\r\nHost: node\r\nContent-Length: 3\r\n\r\nxxx",
		"a chunked body": "GET /status HTTP/1.1\r\nHost: node\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nxxx\r\n",
	} {
		t.Run(name, func(t *testing.T) {
			response, _ := io.ReadAll(dial(t, address, text)) // the connection may be reset
			if strings.Contains(string(response), "200 OK") {
				t.Errorf("response %q", response)
			}
		})
	}
}

// A connection serves one request; a second one gets no response.
func TestOneRequestPerConnection(t *testing.T) {
	address := serve(t, healthyServer())
	get(t, address, "/healthz")
	const request = "GET /healthz HTTP/1.1\r\nHost: node\r\n\r\n"
	response, err := io.ReadAll(dial(t, address, request+request))
	if err != nil || strings.Count(string(response), "200 OK") != 1 {
		t.Errorf("response %q, error %v; want one 200 OK", response, err)
	}
}

// largeNode has a status far larger than the buffers of a connection.
func largeNode(context.Context) status.Node {
	n := status.Node{Name: "node"}
	for i := range 5000 {
		n.Devices = append(n.Devices, status.Device{ID: fmt.Sprintf("GPU-%0100d", i)})
	}
	return n
}

// A client that reads slowly receives the whole response, and clients that do not read do not block others.
func TestSlowReaders(t *testing.T) {
	s := healthyServer()
	s.Node = largeNode
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
		t.Errorf("/healthz: status code %d", code)
	}
}

// Metrics responses are made one at a time, however many requests arrive concurrently.
func TestOneResponseAtATime(t *testing.T) {
	var current atomic.Int32
	var concurrent atomic.Bool
	s := healthyServer()
	s.Metrics = http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if current.Add(1) > 1 {
			concurrent.Store(true)
		}
		time.Sleep(time.Millisecond)
		current.Add(-1)
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
				t.Errorf("response %s %v %q, %v", response.Status, response.Header, body, err)
			}
		})
	}
	all.Wait()
	if concurrent.Load() {
		t.Error("several responses were made at a time")
	}
}
