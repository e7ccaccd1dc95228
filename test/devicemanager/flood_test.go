package devicemanager

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/gpucdi/gpucdi/test/product"
	"github.com/gpucdi/gpucdi/test/simdriver"
)

// Limits of the growth of the agent during a flood of connections.
const (
	floodMemory = 20 << 20 // bytes of resident memory, far below the chart's memory limit
	floodFiles  = 300      // open files, more than twice the connections that the agent allows
)

// resident returns the resident memory of a process in bytes.
func resident(t *testing.T, pid int) (bytes int) {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		if value, found := strings.CutPrefix(line, "VmRSS:"); found {
			if _, err := fmt.Sscan(value, &bytes); err != nil {
				t.Fatal(err)
			}
		}
	}
	return bytes << 10
}

// TestFlood opens 2000 connections to the agent's unauthenticated port. They must not block probes and scrapes, and
// must not increase the agent's memory by more than floodMemory, or its open files by more than floodFiles.
func TestFlood(t *testing.T) {
	const connections = 2000
	memory := floodMemory
	if product.RaceEnabled() {
		memory *= 8 // the overhead of the race detector
	}
	for name, request := range map[string]string{
		"idle":              "",
		"half a header":     "GET /status HTTP/1.1\r\nHost: node\r\nX-Long: " + strings.Repeat("x", 4000),
		"response not read": "GET /metrics HTTP/1.1\r\nHost: node\r\n\r\n",
		"a long body":       "POST /status HTTP/1.1\r\nHost: node\r\nContent-Length: 1000000000\r\n\r\n" + strings.Repeat("x", 4000),
	} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t, simdriver.H100x8())
			startKubelet(t, n.kubeletDir, 2)
			n.startAgent(t)
			n.awaitGet(t, "/readyz", http.StatusOK)
			n.get(t, "/metrics")
			n.get(t, "/status")
			before, files := resident(t, n.pid()), openFiles(t, n.pid())
			for i := range connections {
				conn, err := net.Dial("tcp", n.address)
				if err != nil {
					t.Fatalf("connection %d: %v", i, err)
				}
				defer conn.Close()
				_, _ = io.WriteString(conn, request) // the agent may have closed the connection
				if i%100 == 0 {
					n.getOnce(t, "/healthz")
				}
			}
			for _, path := range []string{"/healthz", "/readyz", "/metrics", "/status"} {
				n.getOnce(t, path)
			}
			memoryGrowth, opened := resident(t, n.pid())-before, openFiles(t, n.pid())-files
			t.Logf("%d connections: %d MiB and %d files", connections, memoryGrowth>>20, opened)
			if memoryGrowth > memory || opened > floodFiles {
				t.Errorf("%d connections cost %d MiB and %d files, want at most %d MiB and %d files",
					connections, memoryGrowth>>20, opened, memory>>20, floodFiles)
			}
		})
	}
}

// getOnce requests a path once over a new connection, as a kubelet probe does, and checks that it returns 200.
func (n *node) getOnce(t *testing.T, path string) {
	t.Helper()
	conn, err := net.Dial("tcp", n.address)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(timeout)); err != nil {
		t.Fatal(err)
	}
	fmt.Fprintf(conn, "GET %s HTTP/1.1\r\nHost: node\r\nConnection: close\r\n\r\n", path)
	response, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		t.Fatalf("GET %s: %v", path, err)
	}
	defer response.Body.Close()
	if _, err := io.Copy(io.Discard, response.Body); err != nil || response.StatusCode != http.StatusOK {
		t.Errorf("GET %s: %s, %v", path, response.Status, err)
	}
}
