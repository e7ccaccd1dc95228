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

// What a flood of connections may cost the agent: far less than the chart's limit, and
// twice what the connections take that are kept open.
const (
	floodMemory = 20 << 20 // bytes of resident memory
	floodFiles  = 300      // open files
)

// resident is the resident memory of a process, in bytes.
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

// TestFlood opens thousands of connections to the agent's port, which everybody may
// reach. None of them may keep a probe or a scrape from its answer, and together they
// cost the agent little memory.
func TestFlood(t *testing.T) {
	const connections = 2000
	memory := floodMemory
	if product.Raced() {
		memory *= 8
	}
	for name, sends := range map[string]string{
		"idle":            "",
		"half a header":   "GET /status HTTP/1.1\r\nHost: node\r\nX-Long: " + strings.Repeat("x", 4000),
		"reading nothing": "GET /metrics HTTP/1.1\r\nHost: node\r\n\r\n",
		"a long body":     "POST /status HTTP/1.1\r\nHost: node\r\nContent-Length: 1000000000\r\n\r\n" + strings.Repeat("x", 4000),
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
				_, _ = io.WriteString(conn, sends) // the agent may have hung up
				if i%100 == 0 {
					n.answers(t, "/healthz")
				}
			}
			for _, path := range []string{"/healthz", "/readyz", "/metrics", "/status"} {
				n.answers(t, path)
			}
			took, opened := resident(t, n.pid())-before, openFiles(t, n.pid())-files
			t.Logf("%d connections: %d MiB more, %d files more", connections, took>>20, opened)
			if took > memory || opened > floodFiles {
				t.Errorf("%d connections take %d MiB and %d files", connections, took>>20, opened)
			}
		})
	}
}

// answers asks once, over a connection of its own, as the kubelet does.
func (n *node) answers(t *testing.T, path string) {
	t.Helper()
	conn, err := net.Dial("tcp", n.address)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(patience)); err != nil {
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
