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
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"

	"github.com/gpucdi/gpucdi/allocator"
	"github.com/gpucdi/gpucdi/apiserver"
	"github.com/gpucdi/gpucdi/gpu"
	"github.com/gpucdi/gpucdi/gpu/health"
)

// lister is the part of the kubelet that reports which pods hold devices.
type lister struct {
	podresources.UnimplementedPodResourcesListerServer
}

func (lister) List(context.Context, *podresources.ListPodResourcesRequest) (*podresources.ListPodResourcesResponse, error) {
	return &podresources.ListPodResourcesResponse{PodResources: []*podresources.PodResources{{
		Namespace: "default", Name: "pod", Containers: []*podresources.ContainerResources{{
			Name: "main", Devices: []*podresources.ContainerDevices{{ResourceName: "nvidia.com/gpu", DeviceIds: []string{"GPU-a"}}},
		}},
	}}}, nil
}

// A caller that has gone away takes nothing from those that come after it.
func TestACancelledCallerSpoilsNothing(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "kubelet.sock")
	listener, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	podresources.RegisterPodResourcesListerServer(server, lister{})
	go func() { _ = server.Serve(listener) }() // until Stop
	t.Cleanup(server.Stop)

	gone, cancel := context.WithCancel(t.Context())
	cancel()
	var h holders
	_, _ = h.ask(gone, socket)
	held, err := h.ask(t.Context(), socket)
	if err != nil || len(held) != 1 || held[0].Pod != "pod" {
		t.Errorf("the next caller is told %v, %v", held, err)
	}
}

// The health of a GPU is its own and that of its devices, but not of those that wait for
// a pod to end.
func TestTheCategoryOfAGPU(t *testing.T) {
	tracker := &health.Tracker{}
	for _, uuid := range []string{"GPU-sick", "MIG-sick"} {
		tracker.Event(uuid, 48, time.Now())
	}
	reason := tracker.Health("GPU-sick").Reason
	n := &node{health: tracker, known: &gpu.Inventory{}}
	n.inspected = &gpu.Inventory{GPUs: []gpu.GPU{
		{UUID: "GPU-well"},
		{UUID: "GPU-sick", Fault: reason},
		{UUID: "GPU-node", Fault: "/dev/nvidia3 is missing"},
		{UUID: "GPU-part", MIGDevices: []gpu.MIGDevice{{UUID: "MIG-well"}, {UUID: "MIG-sick", Fault: reason}}},
		{UUID: "GPU-whole"},
		{UUID: "GPU-waits"},
	}}
	n.listed = []*allocator.Resource{{Devices: []allocator.Device{
		{ID: "GPU-well", GPU: "GPU-well"},
		{ID: "GPU-well", GPU: "GPU-well", Fault: "left", State: allocator.StateDraining},
		{ID: "GPU-node", GPU: "GPU-node", Fault: "/dev/nvidia3 is missing"},
		{ID: "MIG-well", GPU: "GPU-part"},
		{ID: "MIG-sick", GPU: "GPU-part", Fault: reason},
		{ID: "GPU-whole", GPU: "GPU-whole", Fault: "in MIG mode"},
		{ID: "GPU-waits", GPU: "GPU-waits", Fault: "waits", State: allocator.StateWaiting},
	}}}
	for i, want := range []string{"", "xid_48", faultDeviceNode, "xid_48", faultConfig, ""} {
		g := n.inspected.GPUs[i]
		if got := n.gpuStatus(g).Category; got != want {
			t.Errorf("%s has the category %q, want %q", g.UUID, got, want)
		}
	}
}

// An API server that refuses the watch of the node's labels is a trouble of the config,
// with the reason, until it does not.
func TestRefusedLabelsAreReported(t *testing.T) {
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
	a := New(Config{NodeName: "node"}, slog.New(slog.DiscardHandler))
	a.view.byLabels.Store(true)
	a.view.labelsUnknown(errors.New("not received yet"))
	client := apiserver.New(api.URL, credentials(t))

	follow := func(until string) {
		t.Helper()
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() { a.watchNode(ctx, client, make(chan map[string]string, 1)); close(ended) }()
		defer func() { cancel(); <-ended }()
		for start := time.Now(); ; time.Sleep(time.Millisecond) {
			trouble := a.status(t.Context()).Config.LabelsTrouble
			if trouble == until || until != "" && strings.Contains(trouble, until) {
				return
			}
			if time.Since(start) > 30*time.Second {
				t.Fatalf("the status says %q, want %q", trouble, until)
			}
		}
	}
	follow("not applied: watching node node: the API server answers 403: nodes is forbidden")
	refuse = false
	follow("")

	a.view.labelsStale(errors.New("gone"))
	a.view.byLabels.Store(false)
	if trouble := a.status(t.Context()).Config.LabelsTrouble; trouble != "" {
		t.Errorf("without such sections the status says %q", trouble)
	}
}

// credentials is a service account that has never seen the API server.
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
