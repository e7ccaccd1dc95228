package devicemanager

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc"
	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"

	"github.com/gpucdi/gpucdi/test/simdriver"
)

// nodeStatus decodes the output of gpucdi status -o json.
type nodeStatus struct {
	Name, Version string
	Config        struct {
		Path, Error, LabelsError string
		Loaded                   time.Time
	}
	Driver struct{ Version, CUDA, Root, Error string }
	Spec   struct {
		Path, Error string
		Devices     int
	}
	Runtime struct{ Name, Version, Error string }
	Kubelet struct {
		Resources []struct {
			Name, Error string
			Registered  time.Time
		}
		PodsError string
	}
	Devices  []deviceStatus
	Excluded []struct{ ID, Index, Rule string }
	GPUs     []struct {
		UUID, Product string
		Index         int
		MemoryBytes   uint64
		Fault         *struct{ Code string }
		Telemetry     struct {
			Utilization, TemperatureCelsius, PowerWatts, SMClockHertz *float64
			MemoryUsedBytes, ECCUncorrected                           *uint64
		}
	}
}

type deviceStatus struct {
	ID, Resource, GPU string
	Fault             *struct {
		Code, Message, Remedy string
		Since                 time.Time
	}
	State, Reason, Awaits string // only without a fault
	Replicas              []string
	AllocatedTo           []struct{ Namespace, Pod, Container string }
}

func (n *node) statusText(t *testing.T, args ...string) string {
	t.Helper()
	out, err := exec.Command(binary, append([]string{"status", "--address", n.address}, args...)...).CombinedOutput()
	if err != nil {
		t.Fatalf("gpucdi status: %v\n%s", err, out)
	}
	return string(out)
}

func (n *node) status(t *testing.T) (s nodeStatus) {
	t.Helper()
	if err := json.Unmarshal([]byte(n.statusText(t, "-o", "json")), &s); err != nil {
		t.Fatal(err)
	}
	return s
}

// awaitStatus waits until the status meets a condition. The agent publishes the status after it has updated the
// kubelet.
func (n *node) awaitStatus(t *testing.T, condition func(nodeStatus) bool) nodeStatus {
	t.Helper()
	n.awaitGet(t, "/healthz", http.StatusOK)
	for start := time.Now(); ; time.Sleep(20 * time.Millisecond) {
		if s := n.status(t); condition(s) {
			return s
		}
		if time.Since(start) > timeout {
			t.Fatalf("got status\n%s", n.statusText(t, "-o", "yaml"))
		}
	}
}

// awaitDevice waits until a device has a fault with the code, or is healthy if code is empty, and returns its status.
// The device may have other faults before.
func (n *node) awaitDevice(t *testing.T, id, code string) (d deviceStatus) {
	t.Helper()
	n.awaitStatus(t, func(s nodeStatus) bool {
		at := slices.IndexFunc(s.Devices, func(d deviceStatus) bool { return d.ID == id })
		if at < 0 {
			return false
		}
		d = s.Devices[at]
		return d.Fault == nil && code == "" && d.State == "" || d.Fault != nil && d.Fault.Code == code
	})
	return d
}

// get returns the body of a path of the agent's HTTP server.
func (n *node) get(t *testing.T, path string) string {
	t.Helper()
	response, err := http.Get("http://" + n.address + path)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(body)
}

// awaitGet waits until a path returns a status code.
func (n *node) awaitGet(t *testing.T, path string, code int) {
	t.Helper()
	for start := time.Now(); ; time.Sleep(5 * time.Millisecond) {
		response, err := http.Get("http://" + n.address + path)
		if err == nil {
			_ = response.Body.Close()
			if response.StatusCode == code {
				return
			}
		}
		if time.Since(start) > timeout {
			t.Fatalf("GET %s does not return %d: %v", path, code, err)
		}
	}
}

func TestStatus(t *testing.T) {
	t.Parallel()
	n, k := startNode(t)
	pod, held := n.admitPod(t, k, "holder", 2)
	servePodResources(t, n.kubeletDir, pod.Namespace, pod.Name, held)

	s := n.awaitStatus(t, func(s nodeStatus) bool {
		return len(s.Devices) > 0 && s.Runtime.Error != "not detected yet" && s.Kubelet.PodsError == ""
	})
	if s.Name != "node" || s.Version == "" || s.Driver.Version != n.driver.State().Version || s.Driver.CUDA != "13.0" ||
		s.Driver.Root != "/" || s.Driver.Error != "" {
		t.Errorf("got node and driver %+v", s)
	}
	if s.Spec.Path != filepath.Join(n.cdiDir, "gpucdi.dev-gpu.json") || s.Spec.Devices != 8 || s.Spec.Error != "" {
		t.Errorf("got spec %+v", s.Spec)
	}
	if s.Runtime.Name != "containerd" || s.Runtime.Error != "" {
		t.Errorf("got runtime %+v", s.Runtime)
	}
	if len(s.Kubelet.Resources) != 1 || s.Kubelet.Resources[0].Name != string(gpuResource) || s.Kubelet.Resources[0].Registered.IsZero() {
		t.Errorf("got kubelet %+v", s.Kubelet)
	}
	if len(s.Devices) != 8 || len(s.GPUs) != 8 {
		t.Fatalf("got %d devices and %d GPUs, want 8 and 8", len(s.Devices), len(s.GPUs))
	}
	holders := 0
	for _, d := range s.Devices {
		if d.Fault != nil || d.Resource != string(gpuResource) || d.GPU != d.ID {
			t.Errorf("got device %+v", d)
		}
		for _, h := range d.AllocatedTo {
			holders++
			if h.Namespace != "default" || h.Pod != "holder" || h.Container != "main" {
				t.Errorf("%s is allocated to %+v", d.ID, h)
			}
		}
	}
	if holders != 2 {
		t.Errorf("%d devices are allocated, want 2", holders)
	}
	n.awaitGet(t, "/healthz", http.StatusOK)
	n.awaitGet(t, "/readyz", http.StatusOK)
}

func TestStatusTelemetry(t *testing.T) {
	t.Parallel()
	n, _ := startNode(t)
	gpu := n.driver.State().GPUs[3]
	err := n.driver.Update(func(s *simdriver.State) error {
		g := s.GPU(gpu.UUID)
		g.Utilization, g.Temperature, g.Power, g.Clock, g.Used = 37, 71, 345600, 1755, 5<<30
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	n.awaitStatus(t, func(s nodeStatus) bool {
		for _, g := range s.GPUs {
			m := g.Telemetry
			if g.UUID == gpu.UUID && m.Utilization != nil && *m.Utilization == 0.37 && *m.TemperatureCelsius == 71 &&
				*m.PowerWatts == 345.6 && *m.SMClockHertz == 1755e6 && *m.MemoryUsedBytes == 5<<30 && *m.ECCUncorrected == 0 {
				return true
			}
		}
		return false
	})
}

// status --watch prints the status repeatedly until it is interrupted.
func TestStatusWatch(t *testing.T) {
	t.Parallel()
	n, _ := startNode(t)
	n.awaitGet(t, "/readyz", http.StatusOK)
	ctx, cancel := context.WithTimeout(t.Context(), timeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, binary, "status", "--address", n.address, "--watch")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	printed := 0
	for lines := bufio.NewScanner(out); printed < 2 && lines.Scan(); {
		if strings.HasPrefix(lines.Text(), "Node node, gpucdi ") {
			printed++
		}
		if strings.Contains(lines.Text(), "\x1b") {
			t.Errorf("escape sequence without a terminal: %q", lines.Text())
		}
	}
	if err := cmd.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	_, _ = io.Copy(io.Discard, out)
	if err := cmd.Wait(); err != nil || printed != 2 {
		t.Errorf("status printed %d times, want 2; error %v", printed, err)
	}
}

// The status has the code, message and remedy of each fault until it clears.
func TestStatusOfFaults(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name                  string
		config                string
		inject, restore       func(n *node, gpu string) error
		code, message, remedy string
	}{
		{
			name:    "an XID",
			config:  longQuiet,
			inject:  func(n *node, gpu string) error { return n.driver.RaiseXID(gpu, 48) },
			restore: func(*node, string) error { return nil },
			code:    "xid_48", message: "XID 48: double-bit ECC error", remedy: "no recovery action",
		},
		{
			name: "calls fail",
			inject: func(n *node, gpu string) error {
				return n.driver.InjectFault(simdriver.Fault{GPU: gpu, Return: unknownError})
			},
			restore: func(n *node, _ string) error { return n.driver.ClearFaults() },
			code:    "unresponsive", message: "reaching the GPU", remedy: "without a further fault",
		},
		{
			name:    "driver unloaded",
			inject:  func(n *node, _ string) error { return n.driver.Unload() },
			restore: func(n *node, _ string) error { return n.driver.Load() },
			code:    "driver", message: "initializing NVML", remedy: "modprobe nvidia", // the message ends with the remedy
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			n, _ := startNode(t, tc.config)
			faulty := n.uuids()[5]
			before := time.Now()
			if err := tc.inject(n, faulty); err != nil {
				t.Fatal(err)
			}
			f := n.awaitDevice(t, faulty, tc.code).Fault
			// A reconcile for another reason can detect an unloaded module before the driver worker does.
			for start := time.Now(); !strings.Contains(f.Message, tc.message) && time.Since(start) < timeout; time.Sleep(20 * time.Millisecond) {
				f = n.awaitDevice(t, faulty, tc.code).Fault
			}
			if !strings.Contains(f.Message, tc.message) || !strings.Contains(f.Message+"; "+f.Remedy, tc.remedy) {
				t.Errorf("got fault %+v", f)
			}
			if f.Since.Before(before) || f.Since.After(time.Now()) {
				t.Errorf("got fault since %s", f.Since)
			}
			n.awaitMetric(t, fmt.Sprintf(`gpucdi_devices{health="unhealthy",reason=%q,resource="nvidia.com/gpu"} `, tc.code))
			n.awaitMetric(t, fmt.Sprintf(`gpucdi_gpu_healthy{code=%q,gpu=%q} 0`, tc.code, faulty))
			if table := n.statusText(t, "-o", "wide"); !strings.Contains(table, "unhealthy") || !strings.Contains(table, tc.message) {
				t.Errorf("got status table\n%s", table)
			}
			if err := tc.restore(n, faulty); err != nil {
				t.Fatal(err)
			}
			n.awaitDevice(t, faulty, "")
			n.awaitMetric(t, fmt.Sprintf(`gpucdi_gpu_healthy{code="",gpu=%q} 1`, faulty))
		})
	}
}

// awaitMetric waits until a line of the metrics begins with prefix.
func (n *node) awaitMetric(t *testing.T, prefix string) {
	t.Helper()
	n.awaitGet(t, "/healthz", http.StatusOK)
	for start := time.Now(); ; time.Sleep(20 * time.Millisecond) {
		metrics := n.get(t, "/metrics")
		if strings.Contains(metrics, "\n"+prefix) {
			return
		}
		if time.Since(start) > timeout {
			t.Fatalf("metrics lack %s:\n%s", prefix, metrics)
		}
	}
}

func TestMetrics(t *testing.T) {
	t.Parallel()
	n := newNode(t, simdriver.H100x8())
	k := startKubelet(t, n.kubeletDir, 2)
	n.startAgent(t)
	k.awaitGPUs(t, 8, 8)
	pod, held := n.admitPod(t, k, "holder", 1)
	servePodResources(t, n.kubeletDir, pod.Namespace, pod.Name, held)
	if err := n.driver.RaiseXID(n.uuids()[5], 13); err != nil { // class application
		t.Fatal(err)
	}
	for _, line := range []string{
		`gpucdi_devices{health="healthy",reason="",resource="nvidia.com/gpu"} 8`,
		fmt.Sprintf(`gpucdi_device_allocated{claim="",container="main",device=%q,gpu=%q,namespace="default",pod="holder",resource="nvidia.com/gpu"} 1`, held[0], held[0]),
		fmt.Sprintf(`gpucdi_xids_total{gpu=%q,xid="13"} 1`, n.uuids()[5]),
		fmt.Sprintf(`gpucdi_xids_total{gpu=%q,xid="48"} 0`, n.uuids()[5]),
		fmt.Sprintf(`gpucdi_gpu_power_watts{gpu=%q} `, n.uuids()[5]),
		`gpucdi_kubelet_call_duration_seconds_count{code="OK",method="Allocate",resource="nvidia.com/gpu"} 1`,
		`gpucdi_registrations_total{resource="nvidia.com/gpu"} 1`,
		`gpucdi_spec_writes_total 1`,
		`gpucdi_component_healthy{component="kubelet"} 1`,
		`gpucdi_component_healthy{component="runtime"} 1`,
	} {
		n.awaitMetric(t, line)
	}
}

// Scrapes use the latest snapshot and do not call NVML.
func TestScrapesDoNotCallNVML(t *testing.T) {
	t.Parallel()
	n := newNode(t, simdriver.H100x8())
	n.configure(t, "health: {probeInterval: 1h}") // probes call NVML too
	k := startKubelet(t, n.kubeletDir, 2)
	n.startAgent(t)
	k.awaitGPUs(t, 8, 8)
	for start := time.Now(); n.eventWaits(t) == 0; time.Sleep(time.Millisecond) { // the last call of the first probe
		if time.Since(start) > timeout {
			t.Fatal("no wait for NVML events")
		}
	}
	n.awaitGet(t, "/readyz", http.StatusOK)
	before := n.totalNVMLCalls(t)
	for range 10 {
		n.get(t, "/metrics")
		n.get(t, "/status")
	}
	if now := n.totalNVMLCalls(t); now != before || before == 0 {
		t.Errorf("%d NVML calls before the scrapes, %d after; want the same number, not 0", before, now)
	}
}

// The HTTP server responds while the driver and the pod resources API hang and no kubelet runs.
func TestStatusWithUnresponsiveSources(t *testing.T) {
	t.Parallel()
	n := newNode(t, simdriver.H100x8())
	if err := n.driver.InjectFault(simdriver.Fault{Func: "nvmlInit_v2", Hang: time.Hour}); err != nil {
		t.Fatal(err)
	}
	unresponsive, err := net.Listen("unix", podResourcesSocket(t, n.kubeletDir))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unresponsive.Close() })
	n.startAgent(t)
	n.awaitGet(t, "/healthz", http.StatusOK)
	n.awaitGet(t, "/readyz", http.StatusServiceUnavailable)
	s := n.status(t)
	if s.Driver.Error == "" || s.Kubelet.PodsError == "" || len(s.Devices) != 0 {
		t.Errorf("got status %+v", s)
	}
	if err := n.process.Process.Signal(syscall.SIGHUP); err != nil {
		t.Fatal(err)
	}
	n.awaitGet(t, "/healthz", http.StatusOK)
}

// podResourcesSocket returns the path of the pod resources socket, and creates its directory.
func podResourcesSocket(t *testing.T, kubeletDir string) string {
	t.Helper()
	path := filepath.Join(kubeletDir, "pod-resources", "kubelet.sock")
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	return path
}

// staticPodLister serves the pod resources API with a fixed response.
type staticPodLister struct {
	podresources.UnimplementedPodResourcesListerServer
	response *podresources.ListPodResourcesResponse
}

func (p *staticPodLister) List(context.Context, *podresources.ListPodResourcesRequest) (*podresources.ListPodResourcesResponse, error) {
	return p.response, nil
}

// servePodResources serves the pod resources API with one pod, in place of the kubelet's podLister.
func servePodResources(t *testing.T, kubeletDir, namespace, pod string, devices []string) {
	t.Helper()
	servePodLister(t, kubeletDir, &staticPodLister{response: &podresources.ListPodResourcesResponse{
		PodResources: []*podresources.PodResources{{Namespace: namespace, Name: pod, Containers: []*podresources.ContainerResources{{
			Name: "main", Devices: []*podresources.ContainerDevices{{ResourceName: string(gpuResource), DeviceIds: devices}},
		}}}},
	}})
}

// servePodLister serves the pod resources API, and replaces the previous server.
func servePodLister(t *testing.T, kubeletDir string, lister podresources.PodResourcesListerServer) {
	t.Helper()
	socket := podResourcesSocket(t, kubeletDir)
	_ = os.Remove(socket) // of the previous server
	listener, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	listener.(*net.UnixListener).SetUnlinkOnClose(false) // the path may belong to the next server
	server := grpc.NewServer()
	podresources.RegisterPodResourcesListerServer(server, lister)
	ended := make(chan error)
	go func() { ended <- server.Serve(listener) }()
	t.Cleanup(func() {
		server.Stop()
		if err := <-ended; err != nil {
			t.Error(fmt.Errorf("serving pod resources: %w", err))
		}
	})
}
