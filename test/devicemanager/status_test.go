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

// nodeStatus is what gpucdi status -o json prints, as its users read it.
type nodeStatus struct {
	Name, Version string
	Config        struct {
		Path, Trouble, LabelsTrouble string
		Loaded                       time.Time
	}
	Driver struct{ Version, CUDA, Root, Trouble string }
	Spec   struct {
		Path, Trouble string
		Devices       int
	}
	Runtime struct{ Name, Version, Trouble string }
	Kubelet struct {
		Resources []struct {
			Name, Trouble string
			Registered    time.Time
		}
		PodsTrouble string
	}
	Devices []deviceStatus
	GPUs    []struct {
		UUID, Product string
		Index         int
		MemoryBytes   uint64
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
	State, Reason, Awaits string // if it has no fault
	Replicas              []string
	HeldBy                []struct{ Namespace, Pod, Container string }
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

// awaitStatus waits until the status is as a test needs it: the agent publishes
// it after it has told the kubelet.
func (n *node) awaitStatus(t *testing.T, as func(nodeStatus) bool) nodeStatus {
	t.Helper()
	n.awaitGet(t, "/healthz", http.StatusOK)
	for start := time.Now(); ; time.Sleep(20 * time.Millisecond) {
		if s := n.status(t); as(s) {
			return s
		}
		if time.Since(start) > patience {
			t.Fatalf("the status is\n%s", n.statusText(t, "-o", "yaml"))
		}
	}
}

// awaitDevice waits until the fault of a device has this code, "" when there is
// none, and returns its status. Of what goes wrong, a part may be seen before the whole.
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

// get asks the agent over HTTP.
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

// awaitGet waits until a path answers with a code.
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
		if time.Since(start) > patience {
			t.Fatalf("GET %s does not answer with %d: %v", path, code, err)
		}
	}
}

func TestStatus(t *testing.T) {
	n, k := both(t)
	pod, held := n.admitted(t, k, "holder", 2)
	servePods(t, n.kubeletDir, pod.Namespace, pod.Name, held)

	s := n.awaitStatus(t, func(s nodeStatus) bool { return len(s.Devices) > 0 && s.Runtime.Trouble != "not asked yet" })
	if s.Name != "node" || s.Version == "" || s.Driver.Version != n.driver.State().Version || s.Driver.CUDA != "13.0" ||
		s.Driver.Root != "/" || s.Driver.Trouble != "" {
		t.Errorf("node and driver are %+v", s)
	}
	if s.Spec.Path != filepath.Join(n.cdiDir, "gpucdi.dev-gpu.json") || s.Spec.Devices != 8 || s.Spec.Trouble != "" {
		t.Errorf("spec is %+v", s.Spec)
	}
	if s.Runtime.Name != "containerd" || s.Runtime.Trouble != "" {
		t.Errorf("runtime is %+v", s.Runtime)
	}
	if len(s.Kubelet.Resources) != 1 || s.Kubelet.Resources[0].Name != string(gpuResource) || s.Kubelet.Resources[0].Registered.IsZero() {
		t.Errorf("kubelet is %+v", s.Kubelet)
	}
	if len(s.Devices) != 8 || len(s.GPUs) != 8 {
		t.Fatalf("%d devices of %d GPUs, want 8 of 8", len(s.Devices), len(s.GPUs))
	}
	holders := 0
	for _, d := range s.Devices {
		if d.Fault != nil || d.Resource != string(gpuResource) || d.GPU != d.ID {
			t.Errorf("device %+v", d)
		}
		for _, h := range d.HeldBy {
			holders++
			if h.Namespace != "default" || h.Pod != "holder" || h.Container != "main" {
				t.Errorf("%s is held by %+v", d.ID, h)
			}
		}
	}
	if holders != 2 {
		t.Errorf("%d devices are held, want 2", holders)
	}
	n.awaitGet(t, "/healthz", http.StatusOK)
	n.awaitGet(t, "/readyz", http.StatusOK)
}

func TestStatusTellsMeasurements(t *testing.T) {
	n, _ := both(t)
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

// Watching shows the status again and again, until it is interrupted.
func TestWatchingTheStatus(t *testing.T) {
	n, _ := both(t)
	n.awaitGet(t, "/readyz", http.StatusOK)
	cmd := exec.Command(binary, "status", "--address", n.address, "--watch")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	shown := 0
	for lines := bufio.NewScanner(out); shown < 2 && lines.Scan(); {
		if strings.HasPrefix(lines.Text(), "Node node, gpucdi ") {
			shown++
		}
		if strings.Contains(lines.Text(), "\x1b") {
			t.Errorf("there are colours outside of a terminal: %q", lines.Text())
		}
	}
	if err := cmd.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	_, _ = io.Copy(io.Discard, out)
	if err := cmd.Wait(); err != nil || shown != 2 {
		t.Errorf("it was shown %d times, and ended with %v", shown, err)
	}
}

// Each fault has its code, its message and its remedy, and is gone from
// the status when it is over.
func TestStatusOfFaults(t *testing.T) {
	for _, tc := range []struct {
		name                  string
		happen, end           func(n *node, gpu string) error
		code, message, remedy string
	}{
		{
			name:   "an XID",
			happen: func(n *node, gpu string) error { return n.driver.RaiseXID(gpu, 48) },
			end:    func(*node, string) error { return nil },
			code:   "xid_48", message: "XID 48: memory had an error", remedy: "no recovery action",
		},
		{
			name: "calls fail",
			happen: func(n *node, gpu string) error {
				return n.driver.Break(simdriver.Fault{GPU: gpu, Return: unknownError})
			},
			end:  func(n *node, _ string) error { return n.driver.Mend() },
			code: "unresponsive", message: "reaching the GPU", remedy: "without a further fault",
		},
		{
			name:   "no driver",
			happen: func(n *node, _ string) error { return n.driver.Unload() },
			end:    func(n *node, _ string) error { return n.driver.Load() },
			code:   "driver", message: "modprobe nvidia",
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			n, _ := both(t)
			sick := n.uuids()[5]
			before := time.Now()
			if err := tc.happen(n, sick); err != nil {
				t.Fatal(err)
			}
			f := n.awaitDevice(t, sick, tc.code).Fault
			if !strings.Contains(f.Message, tc.message) || !strings.Contains(f.Remedy, tc.remedy) {
				t.Errorf("the fault is %+v", f)
			}
			if f.Since.Before(before) || f.Since.After(time.Now()) {
				t.Errorf("the fault is since %s", f.Since)
			}
			n.awaitMetric(t, fmt.Sprintf(`gpucdi_devices{health="unhealthy",reason=%q,resource="nvidia.com/gpu"} `, tc.code))
			n.awaitMetric(t, fmt.Sprintf(`gpucdi_gpu_healthy{code=%q,gpu=%q} 0`, tc.code, sick))
			if table := n.statusText(t, "-o", "wide"); !strings.Contains(table, "unhealthy") || !strings.Contains(table, tc.message) {
				t.Errorf("the table is\n%s", table)
			}
			if err := tc.end(n, sick); err != nil {
				t.Fatal(err)
			}
			n.awaitDevice(t, sick, "")
			n.awaitMetric(t, fmt.Sprintf(`gpucdi_gpu_healthy{code="",gpu=%q} 1`, sick))
		})
	}
}

// awaitMetric waits until the metrics have a line that begins so.
func (n *node) awaitMetric(t *testing.T, line string) {
	t.Helper()
	n.awaitGet(t, "/healthz", http.StatusOK)
	for start := time.Now(); ; time.Sleep(20 * time.Millisecond) {
		metrics := n.get(t, "/metrics")
		if strings.Contains(metrics, "\n"+line) {
			return
		}
		if time.Since(start) > patience {
			t.Fatalf("%s is not in\n%s", line, metrics)
		}
	}
}

func TestMetrics(t *testing.T) {
	n := newNode(t, simdriver.H100x8())
	k := startKubelet(t, n.kubeletDir, 2)
	n.startAgent(t)
	k.counts(t, 8, 8)
	pod, held := n.admitted(t, k, "holder", 1)
	servePods(t, n.kubeletDir, pod.Namespace, pod.Name, held)
	if err := n.driver.RaiseXID(n.uuids()[5], 13); err != nil { // a program's own fault
		t.Fatal(err)
	}
	for _, line := range []string{
		`gpucdi_devices{health="healthy",reason="",resource="nvidia.com/gpu"} 8`,
		fmt.Sprintf(`gpucdi_device_allocated{container="main",device=%q,gpu=%q,namespace="default",pod="holder",resource="nvidia.com/gpu"} 1`, held[0], held[0]),
		fmt.Sprintf(`gpucdi_xids_total{gpu=%q,xid="13"} 1`, n.uuids()[5]),
		fmt.Sprintf(`gpucdi_xids_total{gpu=%q,xid="48"} 0`, n.uuids()[5]),
		fmt.Sprintf(`gpucdi_gpu_power_watts{gpu=%q} `, n.uuids()[5]),
		`gpucdi_kubelet_call_duration_seconds_count{code="OK",method="Allocate",resource="nvidia.com/gpu"} 1`,
		`gpucdi_registrations_total{resource="nvidia.com/gpu"} 1`,
		`gpucdi_spec_writes_total 1`,
		`gpucdi_link_healthy{link="kubelet"} 1`,
		`gpucdi_link_healthy{link="runtime"} 1`,
	} {
		n.awaitMetric(t, line)
	}
}

// A scrape reads what is known: it makes no call into the driver.
func TestScrapesDoNotCallTheDriver(t *testing.T) {
	n := newNode(t, simdriver.H100x8())
	n.configure(t, "health: {probeInterval: 1h}") // the probes call it
	k := startKubelet(t, n.kubeletDir, 2)
	n.startAgent(t)
	k.counts(t, 8, 8)
	for start := time.Now(); n.eventWaits(t) == 0; time.Sleep(time.Millisecond) { // the last call of the first round
		if time.Since(start) > patience {
			t.Fatal("the driver is not asked for events")
		}
	}
	n.awaitGet(t, "/readyz", http.StatusOK)
	before := n.nvmlCalls(t)
	for range 10 {
		n.get(t, "/metrics")
		n.get(t, "/status")
	}
	if now := n.nvmlCalls(t); now != before || before == 0 {
		t.Errorf("%d NVML calls before the scrapes, %d after", before, now)
	}
}

// A kubelet that does not answer about its pods, a driver that hangs and the
// lack of everything hold nobody up who looks.
func TestStatusWithoutAnything(t *testing.T) {
	n := newNode(t, simdriver.H100x8())
	if err := n.driver.Break(simdriver.Fault{Func: "nvmlInit_v2", Hang: time.Hour}); err != nil {
		t.Fatal(err)
	}
	silent, err := net.Listen("unix", podsSocket(t, n.kubeletDir))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = silent.Close() })
	n.startAgent(t)
	n.awaitGet(t, "/healthz", http.StatusOK)
	n.awaitGet(t, "/readyz", http.StatusServiceUnavailable)
	s := n.status(t)
	if s.Driver.Trouble == "" || s.Kubelet.PodsTrouble == "" || len(s.Devices) != 0 {
		t.Errorf("the status is %+v", s)
	}
	if err := n.process.Process.Signal(syscall.SIGHUP); err != nil {
		t.Fatal(err)
	}
	n.awaitGet(t, "/healthz", http.StatusOK)
}

func podsSocket(t *testing.T, kubeletDir string) string {
	t.Helper()
	path := filepath.Join(kubeletDir, "pod-resources", "kubelet.sock")
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	return path
}

// pods answers as the kubelet does about its pods, of which there is one.
type pods struct {
	podresources.UnimplementedPodResourcesListerServer
	answer *podresources.ListPodResourcesResponse
}

func (p *pods) List(context.Context, *podresources.ListPodResourcesRequest) (*podresources.ListPodResourcesResponse, error) {
	return p.answer, nil
}

// servePods is the part of the kubelet that the in-process device manager
// lacks: it tells who holds what.
func servePods(t *testing.T, kubeletDir, namespace, pod string, devices []string) {
	t.Helper()
	serveLister(t, kubeletDir, &pods{answer: &podresources.ListPodResourcesResponse{
		PodResources: []*podresources.PodResources{{Namespace: namespace, Name: pod, Containers: []*podresources.ContainerResources{{
			Name: "main", Devices: []*podresources.ContainerDevices{{ResourceName: string(gpuResource), DeviceIds: devices}},
		}}}},
	}})
}

// serveLister answers for the kubelet who holds devices, in place of who did before.
func serveLister(t *testing.T, kubeletDir string, lister podresources.PodResourcesListerServer) {
	t.Helper()
	socket := podsSocket(t, kubeletDir)
	_ = os.Remove(socket) // of the lister that this one replaces
	listener, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	listener.(*net.UnixListener).SetUnlinkOnClose(false) // it may be replaced, too
	server := grpc.NewServer()
	podresources.RegisterPodResourcesListerServer(server, lister)
	ended := make(chan error)
	go func() { ended <- server.Serve(listener) }()
	t.Cleanup(func() {
		server.Stop()
		if err := <-ended; err != nil {
			t.Error(fmt.Errorf("serving the kubelet's pods: %w", err))
		}
	})
}
