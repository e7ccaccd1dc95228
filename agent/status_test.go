package agent

import (
	"context"
	"encoding/pem"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"

	"github.com/gpucdi/gpucdi/allocator"
	"github.com/gpucdi/gpucdi/cluster"
	"github.com/gpucdi/gpucdi/gpu"
	"github.com/gpucdi/gpucdi/status"
)

// lister is a pod resources API with a single pod. Its container main has GPU-a, and GPU-0 through a claim.
type lister struct {
	podresources.UnimplementedPodResourcesListerServer
}

func (lister) List(context.Context, *podresources.ListPodResourcesRequest) (*podresources.ListPodResourcesResponse, error) {
	return &podresources.ListPodResourcesResponse{PodResources: []*podresources.PodResources{{
		Namespace: "default", Name: "pod", Containers: []*podresources.ContainerResources{{
			Name: "main", Devices: []*podresources.ContainerDevices{{ResourceName: "nvidia.com/gpu", DeviceIds: []string{"GPU-a"}}},
			DynamicResources: []*podresources.DynamicResource{{ClaimNamespace: "default", ClaimName: "claim", ClaimResources: []*podresources.ClaimResource{
				{DriverName: "gpu.nvidia.com", PoolName: "node", DeviceName: "gpu-0"},
			}}},
		}},
	}}}, nil
}

// serve starts a lister, and connects h to it.
func (h *holders) serve(t *testing.T) {
	t.Helper()
	h.kubelet.Socket, h.timeout = filepath.Join(t.TempDir(), "kubelet.sock"), 30*time.Second
	listener, err := net.Listen("unix", h.kubelet.Socket)
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	podresources.RegisterPodResourcesListerServer(server, lister{})
	go func() { _ = server.Serve(listener) }() // until Stop
	t.Cleanup(server.Stop)
	t.Cleanup(h.close)
}

// A request of a canceled caller still fills the cache for the next one.
func TestHoldersCanceledCaller(t *testing.T) {
	canceled, cancel := context.WithCancel(t.Context())
	cancel()
	var h holders
	h.serve(t)
	_, _ = h.list(canceled)
	held, err := h.list(t.Context())
	if err != nil || len(held) != 2 || held[0].Pod != "pod" {
		t.Errorf("next caller: %v, %v", held, err)
	}
}

// The fault of a GPU is its own or that of one of its devices. Waiting for a pod to end is not a fault.
func TestGPUFault(t *testing.T) {
	xid := gpu.Fault{Code: "xid_48", Message: "XID 48", Since: time.Unix(1, 0)}
	missing := gpu.Fault{Code: gpu.FaultDeviceNode, Message: "/dev/nvidia3 is missing"}
	config := gpu.Fault{Code: gpu.FaultConfig, Message: "in MIG mode"}
	s := newSnapshot()
	gpus := []gpu.GPU{
		{UUID: "GPU-healthy"},
		{UUID: "GPU-xid", Fault: xid},
		{UUID: "GPU-node", Fault: missing},
		{UUID: "GPU-part", MIGDevices: []gpu.MIGDevice{{UUID: "MIG-healthy"}, {UUID: "MIG-xid", Fault: xid}}},
		{UUID: "GPU-whole"},
		{UUID: "GPU-waits"},
	}
	listed := missing
	listed.Since = time.Unix(2, 0)
	s.offers = []*allocator.Resource{{Devices: []allocator.Device{
		{ID: "GPU-healthy", GPU: "GPU-healthy", State: allocator.StateAvailable},
		{ID: "GPU-healthy", GPU: "GPU-healthy", State: allocator.StateDraining},
		{ID: "GPU-node", GPU: "GPU-node", State: allocator.StateUnavailable, Fault: listed},
		{ID: "MIG-healthy", GPU: "GPU-part", State: allocator.StateAvailable},
		{ID: "MIG-xid", GPU: "GPU-part", State: allocator.StateUnavailable, Fault: xid},
		{ID: "GPU-whole", GPU: "GPU-whole", State: allocator.StateUnavailable, Fault: config},
		{ID: "GPU-waits", GPU: "GPU-waits", State: allocator.StateWaiting},
	}}}
	for i, want := range []gpu.Fault{{}, xid, listed, xid, config, {}} {
		if got := s.gpuStatus(gpus[i]).Fault; got != want {
			t.Errorf("%s: got fault %+v, want %+v", gpus[i].UUID, got, want)
		}
	}
	s.config.fault = config
	if got := s.gpuStatus(gpus[0]).Fault; got != config {
		t.Errorf("without a config: got fault %+v, want %+v", got, config)
	}
}

// A device has a fault or the state of a planned change, never both.
func TestDeviceStatus(t *testing.T) {
	since := time.Unix(1, 0)
	for name, tc := range map[string]struct {
		device allocator.Device
		want   status.Device
	}{
		"available": {allocator.Device{ID: "GPU-a", State: allocator.StateAvailable, Since: since}, status.Device{ID: "GPU-a"}},
		"unavailable": {
			allocator.Device{ID: "GPU-a", State: allocator.StateUnavailable, Since: since, Fault: gpu.Gone()},
			status.Device{ID: "GPU-a", Fault: gpu.Gone()},
		},
		"restored, without a verified spec": {
			allocator.Device{ID: "GPU-a", State: allocator.StateUnavailable, Since: since, Reason: "waits for its CDI spec"},
			status.Device{ID: "GPU-a", State: status.Waiting, Since: since, Reason: "waits for its CDI spec"},
		},
		"draining after its GPU was lost": {
			allocator.Device{ID: "GPU-a", State: allocator.StateDraining, Since: since, Fault: gpu.Gone(), Awaits: "its pods"},
			status.Device{ID: "GPU-a", Fault: gpu.Gone()},
		},
		"draining": {
			allocator.Device{ID: "GPU-a", State: allocator.StateDraining, Since: since, Reason: "the config no longer advertises it in this way", Awaits: "its pods"},
			status.Device{ID: "GPU-a", State: "draining", Since: since, Reason: "the config no longer advertises it in this way", Awaits: "its pods"},
		},
	} {
		tc.want.Resource, tc.want.MemoryIsolation, tc.want.ComputeIsolation = "nvidia.com/gpu", "hardware", "hardware"
		if got := deviceStatus("nvidia.com/gpu", tc.device); !reflect.DeepEqual(got, tc.want) {
			t.Errorf("%s: got %+v, want %+v", name, got, tc.want)
		}
	}
}

// While the API server refuses the watch of the node's labels, the status reports why.
func TestLabelWatchRefused(t *testing.T) {
	refuse := true
	api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if refuse {
			w.WriteHeader(http.StatusForbidden)
			_, _ = io.WriteString(w, `{"kind":"Status","message":"nodes is forbidden"}`)
			return
		}
		_, _ = io.WriteString(w, `{"type":"ADDED","object":{"metadata":{"labels":{"a":"b"}}}}`)
		w.(http.Flusher).Flush()
		<-r.Context().Done()
	}))
	defer api.Close()
	cfg := Config{NodeName: "node", ConfigFile: filepath.Join(t.TempDir(), "config.yaml")}
	configure := func(text string) {
		t.Helper()
		if err := os.WriteFile(cfg.ConfigFile, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	configure("nodes: [{selector: a}]")
	a := New(cfg, slog.New(slog.DiscardHandler))
	l := newLoop(a.collaborators(allocator.NewGate(time.Now), a.newComputeLimits(nil, nil), nil, newTriggers(nil)), newSnapshot())
	l.reload(t.Context())
	client := cluster.New(api.URL, credentials(t))

	awaitProblem := func(want string) {
		t.Helper()
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		updates := make(chan update[map[string]string], 1)
		watch := follow(a.watchLabels(client), updates, a.log, "not watched")
		go func() { watch(ctx); close(ended) }()
		defer func() { cancel(); <-ended }()
		for late := time.After(30 * time.Second); ; {
			select {
			case u := <-updates:
				l.relabel(ctx, u)
				l.publish()
			case <-late:
				t.Fatalf("status reports %q, want %q", a.status(t.Context()).Config.LabelsError, want)
			}
			problem := a.status(t.Context()).Config.LabelsError
			if problem == want || want != "" && strings.Contains(problem, want) {
				return
			}
		}
	}
	awaitProblem("not applied: watching node node: API server returned 403: nodes is forbidden")
	refuse = false
	awaitProblem("")

	l.relabel(t.Context(), update[map[string]string]{err: errors.New("gone")})
	l.publish()
	if problem := a.status(t.Context()).Config.LabelsError; !strings.Contains(problem, "stale: gone") {
		t.Errorf("after a failed watch, status reports %q", problem)
	}
	configure("{}")
	l.reload(t.Context())
	l.publish()
	if problem := a.status(t.Context()).Config.LabelsError; problem != "" {
		t.Errorf("without sections that select by label, status reports %q", problem)
	}
}

// credentials returns a service account directory with the CA of another server.
func credentials(t *testing.T) (dir string) {
	t.Helper()
	dir = t.TempDir()
	server := httptest.NewTLSServer(nil)
	defer server.Close()
	authority := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
	for name, content := range map[string][]byte{"token": []byte("token"), "ca.crt": authority} {
		if err := os.WriteFile(filepath.Join(dir, name), content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}
