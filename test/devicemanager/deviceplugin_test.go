package devicemanager

import (
	"bufio"
	"bytes"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/gpucdi/gpucdi/test/simdriver"
)

// client returns a client of the agent's device plugin.
func (n *node) client(t *testing.T) v1beta1.DevicePluginClient {
	t.Helper()
	sockets := n.sockets(t)
	if len(sockets) != 1 {
		t.Fatalf("got sockets %v, want one", sockets)
	}
	conn, err := grpc.NewClient("unix:"+sockets[0], grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return v1beta1.NewDevicePluginClient(conn)
}

func allocateRequest(containers ...[]string) *v1beta1.AllocateRequest {
	r := &v1beta1.AllocateRequest{}
	for _, ids := range containers {
		r.ContainerRequests = append(r.ContainerRequests, &v1beta1.ContainerAllocateRequest{DevicesIds: ids})
	}
	return r
}

// Current kubelets do not send these Allocate requests, but other clients, or a kubelet with the checkpoint of other
// hardware, may send them.
func TestDirectAllocateRequests(t *testing.T) {
	n := newNode(t, simdriver.H100x8())
	faulty := n.uuids()[5]
	if err := n.driver.InjectFault(simdriver.Fault{GPU: faulty, Func: "nvmlDeviceGetPciInfo", Return: unknownError}); err != nil {
		t.Fatal(err)
	}
	k := startKubelet(t, n.kubeletDir, 2)
	n.startAgent(t)
	k.awaitGPUs(t, 8, 7)
	client, gpus := n.client(t), n.uuids()
	for _, tc := range []struct {
		name    string
		request *v1beta1.AllocateRequest
		code    codes.Code
		message string
	}{
		{"unknown", allocateRequest([]string{gpus[0], "GPU-unknown"}), codes.NotFound, "GPU-unknown"},
		{"twice", allocateRequest([]string{gpus[1], gpus[0], gpus[1]}), codes.InvalidArgument, gpus[1]},
		{"empty list", allocateRequest(nil), codes.InvalidArgument, "no device of nvidia.com/gpu"},
		{"no container", allocateRequest(), codes.InvalidArgument, "no container"},
		{"unhealthy", allocateRequest([]string{faulty}), codes.FailedPrecondition, faulty},
		{"one container of two", allocateRequest([]string{gpus[0]}, []string{"GPU-unknown"}), codes.NotFound, "GPU-unknown"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			response, err := client.Allocate(t.Context(), tc.request)
			if status.Code(err) != tc.code || !strings.Contains(err.Error(), tc.message) {
				t.Errorf("Allocate = %v, %v; want %s with %q", response, err, tc.code, tc.message)
			}
		})
	}
	for _, containers := range [][][]string{
		{{gpus[3]}, {gpus[1], gpus[0]}, {gpus[7]}},
		{slices.DeleteFunc(slices.Clone(gpus), func(id string) bool { return id == faulty })},
	} {
		response, err := client.Allocate(t.Context(), allocateRequest(containers...))
		if err != nil || len(response.ContainerResponses) != len(containers) {
			t.Fatalf("Allocate of %v = %v, %v", containers, response, err)
		}
		for i, c := range response.ContainerResponses {
			r := containerRequest{annotations: c.Annotations}
			for _, d := range c.CdiDevices {
				r.cdiDevices = append(r.cdiDevices, d.Name)
			}
			got := n.injectedGPUs(t, r)
			if slices.Sort(containers[i]); !slices.Equal(slices.Sorted(slices.Values(got)), containers[i]) {
				t.Errorf("container %d has %v, want %v", i, got, containers[i])
			}
		}
	}
}

func TestAllocateAllGPUs(t *testing.T) {
	n, k := startNode(t)
	n.admitPod(t, k, "all", 8)
}

// TestAllocateWithoutIO counts the agent's NVML calls during allocations, and traces its system calls that take a
// path.
func TestAllocateWithoutIO(t *testing.T) {
	n := newNode(t, simdriver.H100x8())
	n.configure(t, "health: {probeInterval: 1h}") // probes call NVML too
	k := startKubelet(t, n.kubeletDir, 2)
	n.startAgent(t)
	k.awaitGPUs(t, 8, 8)
	client, gpus := n.client(t), n.uuids()
	allocate := func() {
		for range 20 {
			pod, _ := n.admitPod(t, k, "pod", 4)
			k.removePod(pod)
		}
		preferred := &v1beta1.PreferredAllocationRequest{ContainerRequests: []*v1beta1.ContainerPreferredAllocationRequest{
			{AvailableDeviceIDs: gpus, AllocationSize: 4}}}
		for range 100 {
			if _, err := client.GetPreferredAllocation(t.Context(), preferred); err != nil {
				t.Fatal(err)
			}
			if _, err := client.Allocate(t.Context(), allocateRequest(gpus)); err != nil {
				t.Fatal(err)
			}
			if _, err := client.Allocate(t.Context(), allocateRequest(nil)); err == nil {
				t.Fatal("Allocate accepted an empty list")
			}
		}
	}
	allocate() // excludes one-time work, such as opening the connection
	// The agent inspects the runtime a second after its start.
	n.awaitStatus(t, func(s nodeStatus) bool { return s.Runtime.Name == "containerd" })

	trace := startTrace(t, n.process.Process.Pid)
	before := n.totalNVMLCalls(t)
	// The agent accesses files every 10 and 15 s regardless of allocations, so it must access none during one attempt.
	var accessed []string
	for attempt := 0; attempt == 0 || len(accessed) > 0 && attempt < 3; attempt++ {
		earlier := len(trace.lines())
		allocate()
		accessed = trace.lines()[earlier:]
	}
	if now := n.totalNVMLCalls(t); now != before || before == 0 {
		t.Errorf("%d NVML calls before the allocations, %d after; want the same number, not 0", before, now)
	}
	if len(accessed) > 0 {
		t.Errorf("files were accessed:\n%s", strings.Join(accessed, "\n"))
	}

	// Verify the counters: a reload calls NVML and reads files.
	earlier := len(trace.lines())
	if err := n.process.Process.Signal(syscall.SIGHUP); err != nil {
		t.Fatal(err)
	}
	for start := time.Now(); n.totalNVMLCalls(t) == before || len(trace.lines()) == earlier; time.Sleep(time.Millisecond) {
		if time.Since(start) > timeout {
			t.Fatalf("a reload made %d NVML calls and %d file accesses, want both",
				n.totalNVMLCalls(t)-before, len(trace.lines())-earlier)
		}
	}
	trace.stop(t)
}

// totalNVMLCalls returns the number of NVML calls of the agent.
func (n *node) totalNVMLCalls(t *testing.T) (total uint64) {
	t.Helper()
	for _, c := range n.nvmlCallCounts(t) {
		total += c
	}
	return total
}

// nvmlCallCounts returns the number of the agent's calls of each NVML function.
func (n *node) nvmlCallCounts(t *testing.T) map[string]uint64 {
	t.Helper()
	calls, err := simdriver.Calls(n.calls)
	if err != nil {
		t.Fatal(err)
	}
	return calls
}

// trace is a running strace of a process with all its threads.
type trace struct {
	cmd    *exec.Cmd
	output string
}

func startTrace(t *testing.T, pid int) *trace {
	t.Helper()
	tr := &trace{output: filepath.Join(t.TempDir(), "trace")}
	tr.cmd = exec.Command("strace", "-f", "-e", "trace=%file", "-e", "signal=none", "-o", tr.output, "-p", strconv.Itoa(pid))
	stderr, err := tr.cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := tr.cmd.Start(); err != nil {
		t.Fatalf("starting strace: %v; install the package strace", err)
	}
	t.Cleanup(func() { tr.stop(t) })
	defer killAfterTimeout(tr.cmd)()
	// strace prints this once it has attached to all threads.
	var all bytes.Buffer
	for lines := bufio.NewScanner(io.TeeReader(stderr, &all)); lines.Scan(); {
		if strings.Contains(lines.Text(), " attached") {
			go func() { _, _ = io.Copy(io.Discard, stderr) }()
			return tr
		}
	}
	t.Fatalf("strace did not attach: %s", all.String())
	return nil
}

// lines returns the traced system calls, except those of libc, which counts the CPUs when a new thread first allocates
// memory. Only builds with the race detector link libc.
func (tr *trace) lines() []string {
	out, err := os.ReadFile(tr.output)
	if err != nil {
		return []string{err.Error()}
	}
	lines := strings.FieldsFunc(string(out), func(r rune) bool { return r == '\n' })
	return slices.DeleteFunc(lines, func(line string) bool { return strings.Contains(line, `"/sys/devices/system/cpu/online"`) })
}

func (tr *trace) stop(t *testing.T) {
	if tr.cmd.ProcessState != nil {
		return
	}
	defer killAfterTimeout(tr.cmd)()
	if err := tr.cmd.Process.Signal(os.Interrupt); err != nil {
		t.Error(err)
	}
	_ = tr.cmd.Wait() // returns the signal as an error
}
