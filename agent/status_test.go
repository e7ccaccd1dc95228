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
	h.kubelet.Socket = socket
	t.Cleanup(h.close)
	_, _ = h.ask(gone)
	held, err := h.ask(t.Context())
	if err != nil || len(held) != 1 || held[0].Pod != "pod" {
		t.Errorf("the next caller is told %v, %v", held, err)
	}
}

// The fault of a GPU is its own, or that of a device of it. What waits for a pod to end is none.
func TestTheFaultOfAGPU(t *testing.T) {
	sick := gpu.Fault{Code: "xid_48", Message: "XID 48", Since: time.Unix(1, 0)}
	missing := gpu.Fault{Code: gpu.FaultDeviceNode, Message: "/dev/nvidia3 is missing"}
	config := gpu.Fault{Code: gpu.FaultConfig, Message: "in MIG mode"}
	s := newSnapshot()
	gpus := []gpu.GPU{
		{UUID: "GPU-well"},
		{UUID: "GPU-sick", Fault: sick},
		{UUID: "GPU-node", Fault: missing},
		{UUID: "GPU-part", MIGDevices: []gpu.MIGDevice{{UUID: "MIG-well"}, {UUID: "MIG-sick", Fault: sick}}},
		{UUID: "GPU-whole"},
		{UUID: "GPU-waits"},
	}
	listed := missing
	listed.Since = time.Unix(2, 0)
	s.offers = []*allocator.Resource{{Devices: []allocator.Device{
		{ID: "GPU-well", GPU: "GPU-well", State: allocator.StateAvailable},
		{ID: "GPU-well", GPU: "GPU-well", State: allocator.StateDraining},
		{ID: "GPU-node", GPU: "GPU-node", State: allocator.StateUnavailable, Fault: listed},
		{ID: "MIG-well", GPU: "GPU-part", State: allocator.StateAvailable},
		{ID: "MIG-sick", GPU: "GPU-part", State: allocator.StateUnavailable, Fault: sick},
		{ID: "GPU-whole", GPU: "GPU-whole", State: allocator.StateUnavailable, Fault: config},
		{ID: "GPU-waits", GPU: "GPU-waits", State: allocator.StateWaiting},
	}}}
	for i, want := range []gpu.Fault{{}, sick, listed, sick, config, {}} {
		if got := s.gpuStatus(gpus[i]).Fault; got != want {
			t.Errorf("%s has the fault %+v, want %+v", gpus[i].UUID, got, want)
		}
	}
	s.config.fault = config
	if got := s.gpuStatus(gpus[0]).Fault; got != config {
		t.Errorf("without a config the fault is %+v", got)
	}
}

// A device has either a fault, or the state that a planned change has put it into.
func TestTheStatusOfADevice(t *testing.T) {
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
		"draining, since its GPU is lost": {
			allocator.Device{ID: "GPU-a", State: allocator.StateDraining, Since: since, Fault: gpu.Gone(), Awaits: "its pods"},
			status.Device{ID: "GPU-a", Fault: gpu.Gone()},
		},
		"draining": {
			allocator.Device{ID: "GPU-a", State: allocator.StateDraining, Since: since, Why: "no longer offered", Awaits: "its pods"},
			status.Device{ID: "GPU-a", State: "draining", Since: since, Reason: "no longer offered", Awaits: "its pods"},
		},
	} {
		tc.want.Resource = "nvidia.com/gpu"
		if got := deviceStatus("nvidia.com/gpu", tc.device); !reflect.DeepEqual(got, tc.want) {
			t.Errorf("%s: %+v, want %+v", name, got, tc.want)
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
	cfg := Config{NodeName: "node", ConfigFile: filepath.Join(t.TempDir(), "config.yaml")}
	configure := func(text string) {
		t.Helper()
		if err := os.WriteFile(cfg.ConfigFile, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	configure("nodes: [{selector: a}]")
	a := New(cfg, slog.New(slog.DiscardHandler))
	l := newLoop(a.collaborators(nil, newTriggers(nil)), newSnapshot())
	l.reload(t.Context())
	client := cluster.New(api.URL, credentials(t))

	awaitTrouble := func(until string) {
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
				t.Fatalf("the status says %q, want %q", a.status(t.Context()).Config.LabelsTrouble, until)
			}
			trouble := a.status(t.Context()).Config.LabelsTrouble
			if trouble == until || until != "" && strings.Contains(trouble, until) {
				return
			}
		}
	}
	awaitTrouble("not applied: watching node node: the API server answers 403: nodes is forbidden")
	refuse = false
	awaitTrouble("")

	l.relabel(t.Context(), update[map[string]string]{err: errors.New("gone")})
	l.publish()
	if trouble := a.status(t.Context()).Config.LabelsTrouble; !strings.Contains(trouble, "out of date: gone") {
		t.Errorf("after the watch has failed the status says %q", trouble)
	}
	configure("{}")
	l.reload(t.Context())
	l.publish()
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
