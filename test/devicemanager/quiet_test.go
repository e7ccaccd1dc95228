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

// client is a direct connection to the agent's device plugin.
func (n *node) client(t *testing.T) v1beta1.DevicePluginClient {
	t.Helper()
	sockets := n.sockets(t)
	if len(sockets) != 1 {
		t.Fatalf("the agent's sockets are %v, want one", sockets)
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

// What no kubelet of today asks, but another client or a kubelet with a
// checkpoint of other hardware might.
func TestUnusualRequests(t *testing.T) {
	n := newNode(t, simdriver.H100x8())
	sick := n.uuids()[5]
	if err := n.driver.Break(simdriver.Fault{GPU: sick, Func: "nvmlDeviceGetPciInfo", Return: 999}); err != nil {
		t.Fatal(err)
	}
	k := startKubelet(t, n.kubeletDir, 2)
	n.startAgent(t)
	k.counts(t, 8, 7)
	client, gpus := n.client(t), n.uuids()
	for _, tc := range []struct {
		name    string
		request *v1beta1.AllocateRequest
		code    codes.Code
		says    string
	}{
		{"unknown", allocateRequest([]string{gpus[0], "GPU-unknown"}), codes.NotFound, "GPU-unknown"},
		{"twice", allocateRequest([]string{gpus[1], gpus[0], gpus[1]}), codes.InvalidArgument, gpus[1]},
		{"empty list", allocateRequest(nil), codes.InvalidArgument, "no device of nvidia.com/gpu"},
		{"no container", allocateRequest(), codes.InvalidArgument, "no container"},
		{"unhealthy", allocateRequest([]string{sick}), codes.FailedPrecondition, sick},
		{"one container of two", allocateRequest([]string{gpus[0]}, []string{"GPU-unknown"}), codes.NotFound, "GPU-unknown"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			response, err := client.Allocate(t.Context(), tc.request)
			if status.Code(err) != tc.code || !strings.Contains(err.Error(), tc.says) {
				t.Errorf("Allocate = %v, %v; want %s with %s", response, err, tc.code, tc.says)
			}
		})
	}
	for _, containers := range [][][]string{
		{{gpus[3]}, {gpus[1], gpus[0]}, {gpus[7]}},
		{slices.DeleteFunc(slices.Clone(gpus), func(id string) bool { return id == sick })},
	} {
		response, err := client.Allocate(t.Context(), allocateRequest(containers...))
		if err != nil || len(response.ContainerResponses) != len(containers) {
			t.Fatalf("Allocate of %v = %v, %v", containers, response, err)
		}
		for i, c := range response.ContainerResponses {
			r := request{annotations: c.Annotations}
			for _, d := range c.CdiDevices {
				r.cdiDevices = append(r.cdiDevices, d.Name)
			}
			given := n.resolve(t, r)
			if slices.Sort(containers[i]); !slices.Equal(slices.Sorted(slices.Values(given)), containers[i]) {
				t.Errorf("container %d is given %v, want %v", i, given, containers[i])
			}
		}
	}
}

func TestAllocateOfEight(t *testing.T) {
	n, k := both(t)
	n.admitted(t, k, "all", 8)
}

// TestAllocateTouchesNothing counts NVML calls and traces the system calls
// with a file name, of the whole agent, over many allocations by the kubelet.
func TestAllocateTouchesNothing(t *testing.T) {
	n := newNode(t, simdriver.H100x8())
	n.configure(t, "health: {probeInterval: 1h}") // the probes call NVML too
	k := startKubelet(t, n.kubeletDir, 2)
	n.startAgent(t)
	k.counts(t, 8, 8)
	client, gpus := n.client(t), n.uuids()
	allocate := func() {
		for range 20 {
			pod, _ := n.admitted(t, k, "pod", 4)
			k.forget(pod)
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
				t.Fatal("an empty list was accepted")
			}
		}
	}
	allocate()              // what is done once, such as opening the connection, is not counted
	time.Sleep(time.Second) // nor is the second look at the config soon after the start

	trace := startTrace(t, n.process.Process.Pid)
	before := n.nvmlCalls(t)
	allocate()
	if now := n.nvmlCalls(t); now != before || before == 0 {
		t.Errorf("%d NVML calls before the allocations, %d after; want the same, and some", before, now)
	}
	if lines := trace.lines(); len(lines) > 0 {
		t.Errorf("files were touched:\n%s", strings.Join(lines, "\n"))
	}

	// That the counts can see something: a reload reads the driver again.
	if err := n.process.Process.Signal(syscall.SIGHUP); err != nil {
		t.Fatal(err)
	}
	for start := time.Now(); n.nvmlCalls(t) == before || len(trace.lines()) == 0; time.Sleep(time.Millisecond) {
		if time.Since(start) > patience {
			t.Fatalf("a reload shows %d NVML calls and %d file accesses: the counts are blind",
				n.nvmlCalls(t)-before, len(trace.lines()))
		}
	}
	trace.stop(t)
}

// nvmlCalls is how many NVML calls the agent has made.
func (n *node) nvmlCalls(t *testing.T) (total uint64) {
	t.Helper()
	for _, c := range n.counted(t) {
		total += c
	}
	return total
}

// counted is how often the agent has called each function of NVML.
func (n *node) counted(t *testing.T) map[string]uint64 {
	t.Helper()
	calls, err := simdriver.Calls(n.calls)
	if err != nil {
		t.Fatal(err)
	}
	return calls
}

// trace is strace at work on a process and all its threads.
type trace struct {
	cmd    *exec.Cmd
	output string
}

func startTrace(t *testing.T, pid int) *trace {
	t.Helper()
	tr := &trace{output: filepath.Join(t.TempDir(), "trace")}
	tr.cmd = exec.Command("strace", "-f", "-e", "trace=%file", "-e", "signal=none", "-o", tr.output, "-p", strconv.Itoa(pid))
	said, err := tr.cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := tr.cmd.Start(); err != nil {
		t.Fatalf("starting strace (install the package strace): %v", err)
	}
	t.Cleanup(func() { tr.stop(t) })
	// strace says so once all threads are attached.
	var all bytes.Buffer
	for lines := bufio.NewScanner(io.TeeReader(said, &all)); lines.Scan(); {
		if strings.Contains(lines.Text(), " attached") {
			go func() { _, _ = io.Copy(io.Discard, said) }()
			return tr
		}
	}
	t.Fatalf("strace did not attach: %s", all.String())
	return nil
}

// lines are the system calls seen so far, but for those of libc, which only the race detector links:
// it counts the CPUs when a new thread first allocates.
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
	if err := tr.cmd.Process.Signal(os.Interrupt); err != nil {
		t.Error(err)
	}
	_ = tr.cmd.Wait() // strace ends by the signal that it was sent
}
