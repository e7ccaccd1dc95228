package devicemanager

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"

	oci "github.com/opencontainers/runtime-spec/specs-go"
	"tags.cncf.io/container-device-interface/pkg/cdi"

	"github.com/gpucdi/gpucdi/test/node/tools"
	"github.com/gpucdi/gpucdi/test/product"
	"github.com/gpucdi/gpucdi/test/simdriver"
)

// binary is the program that is tested.
var binary string

func TestMain(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) int {
	if os.Geteuid() != 0 {
		fmt.Fprintln(os.Stderr, "these tests make device nodes: run them as root")
		return 1
	}
	dir, err := os.MkdirTemp("", "gpucdi")
	if err == nil {
		defer os.RemoveAll(dir)
		err = tools.InstallPackages(context.Background(), "strace")
	}
	if err == nil {
		binary, err = product.Build(context.Background(), dir)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return m.Run()
}

// node is a machine as the agent sees it: a host tree with a driver in it, and
// the directories that the agent shares with the kubelet and the runtime.
type node struct {
	dir                      string // of all that follows
	root, kubeletDir, cdiDir string
	driver                   *simdriver.Driver
	runtime                  *containerd
	stateDir                 string // what outlives the agent
	config                   string // the agent's config file
	nfdDir                   string // where the agent leaves labels for Node Feature Discovery
	address                  string // where the agent serves its status
	calls                    string // the file that counts the agent's NVML calls
	process                  *exec.Cmd
	said                     *bytes.Buffer // what the process said, once it has ended
}

func newNode(t *testing.T, profile simdriver.Profile) *node {
	t.Helper()
	// Not t.TempDir: with the test's name in it, sockets' paths get too long.
	dir, err := os.MkdirTemp("", "node")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := product.Races(dir); err != nil {
			t.Error(err)
		}
		_ = os.RemoveAll(dir)
	})
	n := &node{
		dir:        dir,
		root:       filepath.Join(dir, "root"),
		kubeletDir: filepath.Join(dir, "kubelet"),
		cdiDir:     filepath.Join(dir, "cdi"),
		stateDir:   filepath.Join(dir, "state"),
		config:     filepath.Join(dir, "config.yaml"),
		nfdDir:     filepath.Join(dir, "nfd"),
		calls:      filepath.Join(dir, "calls"),
		address:    freeAddress(t),
	}
	if err := os.Mkdir(n.root, 0o755); err != nil {
		t.Fatal(err)
	}
	if n.driver, err = simdriver.Install(n.root, profile); err != nil {
		t.Fatal(err)
	}
	n.configure(t)
	n.serveRuntime(t, true)
	return n
}

// freeAddress is one that nobody listens at.
func freeAddress(t *testing.T) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	return listener.Addr().String()
}

// health makes the agent quick to see and to forgive.
const health = "health: {probeInterval: 1s, quietPeriod: 3s, callTimeout: 2s}"

// configure writes the agent's config: these lines, and health unless they
// have their own.
func (n *node) configure(t *testing.T, lines ...string) {
	t.Helper()
	if !slices.ContainsFunc(lines, func(line string) bool { return strings.HasPrefix(line, "health:") }) {
		lines = append(lines, health)
	}
	config := "apiVersion: gpucdi.dev/v1\nkind: NodeConfig\n" + strings.Join(lines, "\n") + "\n"
	if err := os.WriteFile(n.config, []byte(config), 0o644); err != nil {
		t.Fatal(err)
	}
}

// startAgent starts the program. It ends with the test at the latest, and then
// as it ends on a node.
func (n *node) startAgent(t *testing.T, flags ...string) {
	t.Helper()
	n.process = exec.Command(binary, append([]string{"serve", "--host-root", n.root, "--kubelet-dir", n.kubeletDir,
		"--cdi-dir", n.cdiDir, "--state-dir", n.stateDir, "--nfd-dir", n.nfdDir, "--node-name", "node", "--config", n.config, "--listen", n.address}, flags...)...)
	n.process.Env = append(append(os.Environ(), n.driver.Env(n.calls)...), product.RaceLog(n.dir))
	n.said = new(bytes.Buffer)
	n.process.Stdout, n.process.Stderr = t.Output(), io.MultiWriter(t.Output(), n.said)
	if err := n.process.Start(); err != nil {
		t.Fatal(err)
	}
	process := n.process
	t.Cleanup(func() {
		if n.process == process {
			n.stopAgent(t)
		}
	})
}

// stopAgent ends the program as the kubelet does. Nobody listens on its sockets
// then, and its specs are still there.
func (n *node) stopAgent(t *testing.T) {
	t.Helper()
	specs := n.specs(t)
	process := n.process
	n.process = nil
	if err := process.Process.Signal(syscall.SIGTERM); err != nil {
		t.Error(err)
	}
	// One that does not end shows its goroutines.
	stuck := time.AfterFunc(patience, func() { _ = process.Process.Signal(syscall.SIGQUIT) })
	defer stuck.Stop()
	if err := process.Wait(); err != nil {
		t.Errorf("the agent's end: %v", err)
	}
	for _, socket := range n.sockets(t) {
		if conn, err := net.Dial("unix", socket); err == nil {
			_ = conn.Close()
			t.Errorf("the agent's socket %s is served after its end", socket)
		}
	}
	after := n.specs(t) // one may have been written meanwhile
	for path := range specs {
		if after[path] == "" {
			t.Errorf("the CDI spec %s is gone with the agent's end", path)
		}
	}
}

// killAgent ends the program without a chance to clean up.
func (n *node) killAgent(t *testing.T) {
	t.Helper()
	process := n.process
	n.process = nil
	if err := process.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = process.Wait() // the signal is its error
}

// sockets are the agent's in the kubelet's directory.
func (n *node) sockets(t *testing.T) []string {
	t.Helper()
	paths, err := filepath.Glob(filepath.Join(n.kubeletDir, "device-plugins", "gpucdi-*.sock"))
	if err != nil {
		t.Fatal(err)
	}
	return paths
}

// specs are the CDI specs on disk, by path. A file that begins with a dot is one
// that is just being written.
func (n *node) specs(t *testing.T) map[string]string {
	t.Helper()
	specs := map[string]string{}
	paths, err := filepath.Glob(filepath.Join(n.cdiDir, "[^.]*"))
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range paths {
		content, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		specs[path] = string(content)
	}
	return specs
}

// uuids are the driver's GPUs.
func (n *node) uuids() (ids []string) {
	for _, g := range n.driver.State().GPUs {
		ids = append(ids, g.UUID)
	}
	return ids
}

// injected does what a runtime does with the kubelet's request, once from each
// of its two forms, and returns the device nodes that the container gets.
func (n *node) injected(t *testing.T, r request) []string {
	t.Helper()
	_, annotated, err := cdi.ParseAnnotations(r.annotations)
	if err != nil {
		t.Fatal(err)
	}
	cache, err := cdi.NewCache(cdi.WithSpecDirs(n.cdiDir), cdi.WithAutoRefresh(false))
	if err != nil {
		t.Fatal(err)
	}
	var nodes [2][]string
	for i, names := range [][]string{r.cdiDevices, annotated} {
		spec := &oci.Spec{}
		if unresolved, err := cache.InjectDevices(spec, names...); err != nil {
			t.Fatalf("the runtime cannot resolve %v: %v", unresolved, err)
		}
		for _, d := range spec.Linux.Devices {
			nodes[i] = append(nodes[i], d.Path)
		}
		slices.Sort(nodes[i])
	}
	if !slices.Equal(nodes[0], nodes[1]) {
		t.Errorf("by field the container gets %v, by annotation %v", nodes[0], nodes[1])
	}
	return nodes[0]
}

// resolve returns the UUIDs of the GPUs that the container gets.
func (n *node) resolve(t *testing.T, r request) []string {
	t.Helper()
	nodes := n.injected(t, r)
	var given []string
	for _, g := range n.driver.State().GPUs {
		if slices.Contains(nodes, fmt.Sprintf("/dev/nvidia%d", g.Minor)) {
			given = append(given, g.UUID)
		}
	}
	if len(given) != len(r.cdiDevices) || !slices.Contains(nodes, "/dev/nvidiactl") {
		t.Errorf("%v lead to %v", r.cdiDevices, nodes)
	}
	for _, uuid := range given {
		if !slices.ContainsFunc(r.cdiDevices, func(name string) bool { return strings.HasSuffix(name, "="+uuid) }) {
			t.Errorf("%v lead to %s", r.cdiDevices, uuid)
		}
	}
	return given
}

// started starts the pod's container and returns the UUIDs of its GPUs.
func (n *node) started(t *testing.T, k *kubelet, pod *v1.Pod) []string {
	t.Helper()
	r, err := k.start(t.Context(), pod)
	if err != nil {
		t.Fatalf("starting %s: %v", pod.Name, err)
	}
	return n.resolve(t, r)
}

// admitted brings a new pod to the node and returns it with its GPUs' UUIDs.
func (n *node) admitted(t *testing.T, k *kubelet, name string, gpus int) (*v1.Pod, []string) {
	t.Helper()
	pod := newPod(name, gpus)
	if err := k.admit(pod); err != nil {
		t.Fatalf("admitting %s: %v", name, err)
	}
	uuids := n.started(t, k, pod)
	if len(uuids) != gpus {
		t.Errorf("%s has %v, want %d GPUs", name, uuids, gpus)
	}
	return pod, uuids
}
