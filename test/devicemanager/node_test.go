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
	"sync/atomic"
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

// binary is the path of the gpucdi program under test.
var binary string

func TestMain(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) int {
	if os.Geteuid() != 0 {
		fmt.Fprintln(os.Stderr, "these tests create device nodes; run them as root")
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

// node is a simulated machine: a host root with a simulated driver, and the directories that the agent shares with
// the kubelet and the container runtime.
type node struct {
	dir                      string // parent of the directories and files below
	root, kubeletDir, cdiDir string
	driver                   *simdriver.Driver // nil: none
	runtime                  *fakeContainerd
	stateDir                 string // the agent's --state-dir
	config                   string // the agent's config file
	nfdDir                   string // features.d of Node Feature Discovery
	address                  string // the agent's --listen address
	calls                    string // file with the number of the agent's NVML calls
	process                  *exec.Cmd
	logs                     *bytes.Buffer // stderr of the process; read it only after the process has exited
}

func newNode(t *testing.T, profile simdriver.Profile) *node {
	t.Helper()
	n := newHost(t)
	var err error
	if n.driver, err = simdriver.Install(n.root, profile); err != nil {
		t.Fatal(err)
	}
	return n
}

// newHost returns a node without a driver.
func newHost(t *testing.T) *node {
	t.Helper()
	// t.TempDir contains the test's name, which makes socket paths too long.
	dir, err := os.MkdirTemp("", "node")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := product.RaceReports(dir); err != nil {
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
		address:    newAddress(),
	}
	if err := os.Mkdir(n.root, 0o755); err != nil {
		t.Fatal(err)
	}
	n.configure(t)
	n.serveRuntime(t, true)
	return n
}

// addresses is the number of addresses that newAddress has returned.
var addresses atomic.Uint32

// newAddress returns a loopback address that no other node has. With a free port of 127.0.0.1 instead, a connection
// could take the port before the agent listens.
func newAddress() string {
	n := addresses.Add(1)
	return fmt.Sprintf("127.1.%d.%d:9435", n/250, n%250+1)
}

// fastHealth shortens fault detection and recovery.
const fastHealth = "health: {probeInterval: 1s, quietPeriod: 3s, callTimeout: 2s}"

// longQuiet is fastHealth with a longer quiet period, so that a device does not recover while a test still checks its
// fault, even on a busy machine.
const longQuiet = "health: {probeInterval: 1s, quietPeriod: 15s, callTimeout: 2s}"

// patient is fastHealth with a call timeout that does not expire on a busy machine. It is for tests that require that no
// device becomes unhealthy, or that the driver worker is not replaced.
const patient = "health: {probeInterval: 1s, quietPeriod: 3s, callTimeout: 1m}"

// configure writes the agent's config file: lines, and fastHealth unless lines configure health.
func (n *node) configure(t *testing.T, lines ...string) {
	t.Helper()
	if !slices.ContainsFunc(lines, func(line string) bool { return strings.HasPrefix(line, "health:") }) {
		lines = append(lines, fastHealth)
	}
	config := "apiVersion: gpucdi.dev/v1\nkind: NodeConfig\n" + strings.Join(lines, "\n") + "\n"
	if err := os.WriteFile(n.config, []byte(config), 0o644); err != nil {
		t.Fatal(err)
	}
}

// startAgent starts gpucdi serve. At the end of the test, stopAgent stops the agent if it still runs.
func (n *node) startAgent(t *testing.T, flags ...string) {
	t.Helper()
	n.process = exec.Command(binary, append([]string{"serve", "--host-root", n.root, "--kubelet-dir", n.kubeletDir,
		"--cdi-dir", n.cdiDir, "--state-dir", n.stateDir, "--nfd-dir", n.nfdDir, "--node-name", "node", "--config", n.config,
		"--listen", n.address}, flags...)...)
	n.process.Env = append(os.Environ(), product.RaceLog(n.dir))
	if n.driver != nil {
		n.process.Env = append(n.process.Env, n.driver.Env(n.calls)...)
	}
	n.logs = new(bytes.Buffer)
	n.process.Stdout, n.process.Stderr = t.Output(), io.MultiWriter(t.Output(), n.logs)
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

// stopAgent terminates the agent as the kubelet does, and checks that its sockets are closed and its CDI specs stay.
func (n *node) stopAgent(t *testing.T) {
	t.Helper()
	specs := n.specs(t)
	process := n.process
	n.process = nil
	if err := process.Process.Signal(syscall.SIGTERM); err != nil {
		t.Error(err)
	}
	// SIGQUIT prints the goroutines of an agent that does not exit.
	stuck := time.AfterFunc(timeout, func() { _ = process.Process.Signal(syscall.SIGQUIT) })
	defer stuck.Stop()
	if err := process.Wait(); err != nil {
		t.Errorf("the agent exited: %v", err)
	}
	for _, socket := range n.sockets(t) {
		if conn, err := net.Dial("unix", socket); err == nil {
			_ = conn.Close()
			t.Errorf("socket %s still accepts connections after the agent exited", socket)
		}
	}
	after := n.specs(t)
	for path := range specs {
		if after[path] == "" {
			t.Errorf("CDI spec %s was removed when the agent exited", path)
		}
	}
}

// killAgent kills the agent with SIGKILL.
func (n *node) killAgent(t *testing.T) {
	t.Helper()
	process := n.process
	n.process = nil
	if err := process.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = process.Wait() // returns the signal as an error
}

// killAfterTimeout kills a process after the timeout unless stop is called before, so that no wait for it is endless.
func killAfterTimeout(cmd *exec.Cmd) (stop func() bool) {
	return time.AfterFunc(timeout, func() { _ = cmd.Process.Kill() }).Stop
}

// sockets returns the paths of the agent's device plugin sockets.
func (n *node) sockets(t *testing.T) []string {
	t.Helper()
	paths, err := filepath.Glob(filepath.Join(n.kubeletDir, "device-plugins", "gpucdi-*.sock"))
	if err != nil {
		t.Fatal(err)
	}
	return paths
}

// specs returns the content of the CDI specs on disk by path, without temporary files, whose names begin with a dot.
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

// uuids returns the UUIDs of the driver's GPUs.
func (n *node) uuids() (ids []string) {
	for _, g := range n.driver.State().GPUs {
		ids = append(ids, g.UUID)
	}
	return ids
}

// injectedNodes resolves a request as a container runtime does, once from the CDI field and once from the annotations,
// and returns the device nodes that are injected into the container.
func (n *node) injectedNodes(t *testing.T, r containerRequest) []string {
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
		t.Errorf("the CDI field injects %v, the annotations %v", nodes[0], nodes[1])
	}
	return nodes[0]
}

// injectedGPUs returns the UUIDs of the GPUs that are injected into the container, and checks that they are those of
// the CDI devices.
func (n *node) injectedGPUs(t *testing.T, r containerRequest) []string {
	t.Helper()
	nodes := n.injectedNodes(t, r)
	var injected []string
	for _, g := range n.driver.State().GPUs {
		if slices.Contains(nodes, fmt.Sprintf("/dev/nvidia%d", g.Minor)) {
			injected = append(injected, g.UUID)
		}
	}
	if len(injected) != len(r.cdiDevices) || !slices.Contains(nodes, "/dev/nvidiactl") {
		t.Errorf("CDI devices %v inject the nodes %v", r.cdiDevices, nodes)
	}
	for _, uuid := range injected {
		if !slices.ContainsFunc(r.cdiDevices, func(name string) bool { return strings.HasSuffix(name, "="+uuid) }) {
			t.Errorf("CDI devices %v inject GPU %s", r.cdiDevices, uuid)
		}
	}
	return injected
}

// startPod starts the pod's container and returns the UUIDs of its GPUs.
func (n *node) startPod(t *testing.T, k *kubelet, pod *v1.Pod) []string {
	t.Helper()
	r, err := k.start(t.Context(), pod)
	if err != nil {
		t.Fatalf("starting %s: %v", pod.Name, err)
	}
	return n.injectedGPUs(t, r)
}

// admitPod admits a new pod, starts its container and returns the pod and the UUIDs of its GPUs.
func (n *node) admitPod(t *testing.T, k *kubelet, name string, gpus int) (*v1.Pod, []string) {
	t.Helper()
	pod := newPod(name, gpus)
	if err := k.admit(pod); err != nil {
		t.Fatalf("admitting %s: %v", name, err)
	}
	uuids := n.startPod(t, k, pod)
	if len(uuids) != gpus {
		t.Errorf("%s has %v, want %d GPUs", name, uuids, gpus)
	}
	return pod, uuids
}
