package kubelet

import (
	"fmt"
	"log/slog"
	"maps"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	api "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
	"tags.cncf.io/container-device-interface/pkg/cdi"

	"github.com/gpucdi/gpucdi/allocator"
	"github.com/gpucdi/gpucdi/gpu"
)

// request returns a request for the devices of each container.
func request(containers ...[]string) *api.AllocateRequest {
	r := &api.AllocateRequest{}
	for _, ids := range containers {
		r.ContainerRequests = append(r.ContainerRequests, &api.ContainerAllocateRequest{DevicesIds: ids})
	}
	return r
}

// byField and byAnnotation return the CDI device names in a response.
func byField(r *api.ContainerAllocateResponse) (names []string) {
	for _, d := range r.CdiDevices {
		names = append(names, d.Name)
	}
	return names
}

func byAnnotation(t *testing.T, r *api.ContainerAllocateResponse) []string {
	t.Helper()
	_, names, err := cdi.ParseAnnotations(r.Annotations)
	if err != nil {
		t.Error(err)
	}
	return names
}

func names(numbers ...int) (names []string) {
	for _, id := range uuids(numbers...) {
		names = append(names, "example.com/gpu="+id)
	}
	return names
}

func TestAllocate(t *testing.T) {
	r, _ := connect(t, offer(bothWays))
	for _, tc := range []struct {
		name       string
		containers [][]string
		want       [][]string
	}{
		{"one device", [][]string{uuids(3)}, [][]string{names(3)}},
		{"order of the request does not matter", [][]string{uuids(6, 1)}, [][]string{names(1, 6)}},
		{"eight devices", [][]string{uuids(7, 6, 5, 4, 3, 2, 1, 0)}, [][]string{names(0, 1, 2, 3, 4, 5, 6, 7)}},
		{"three containers", [][]string{uuids(5), uuids(2, 0), uuids(5)}, [][]string{names(5), names(0, 2), names(5)}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			response, err := r.client.Allocate(t.Context(), request(tc.containers...))
			if err != nil {
				t.Fatal(err)
			}
			if len(response.ContainerResponses) != len(tc.want) {
				t.Fatalf("%d container responses, want %d", len(response.ContainerResponses), len(tc.want))
			}
			for i, got := range response.ContainerResponses {
				if !slices.Equal(byField(got), tc.want[i]) || !slices.Equal(byAnnotation(t, got), tc.want[i]) {
					t.Errorf("container %d: field %v, annotation %v; want %v", i, byField(got), byAnnotation(t, got), tc.want[i])
				}
				if len(got.Envs) != 0 || len(got.Mounts) != 0 || len(got.Devices) != 0 {
					t.Errorf("container %d gets more than CDI device names: %v", i, got)
				}
			}
		})
	}
}

func TestAllocateAnnotationKey(t *testing.T) {
	r, _ := connect(t, offer(bothWays))
	response, err := r.client.Allocate(t.Context(), request(uuids(2, 1), uuids(0)))
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range []string{"cdi.k8s.io/gpucdi_" + uuid(1), "cdi.k8s.io/gpucdi_" + uuid(0)} {
		keys := slices.Collect(maps.Keys(response.ContainerResponses[i].Annotations))
		if !slices.Equal(keys, []string{want}) {
			t.Errorf("annotation keys %v, want %s", keys, want)
		}
	}
}

func TestAllocatePassBy(t *testing.T) {
	r, p := connect(t, offer([]PassBy{ByField}))
	for _, tc := range []struct {
		passBy               []PassBy
		byField, annotations int
	}{
		{[]PassBy{ByField}, 1, 0},
		{[]PassBy{ByAnnotation}, 0, 1},
		{bothWays, 1, 1},
	} {
		p.Update(offer(tc.passBy))
		response, err := r.client.Allocate(t.Context(), request(uuids(0)))
		if err != nil {
			t.Fatal(err)
		}
		got := response.ContainerResponses[0]
		if len(got.CdiDevices) != tc.byField || len(got.Annotations) != tc.annotations {
			t.Errorf("passBy %v: %v", tc.passBy, got)
		}
	}
}

func TestAllocateErrors(t *testing.T) {
	r, p := connect(t, offer(bothWays, fault(4, "XID 79")))
	for _, tc := range []struct {
		name    string
		request *api.AllocateRequest
		code    codes.Code
		want    []string
	}{
		{"no container", request(), codes.InvalidArgument, []string{"no container"}},
		{"no device", request(nil), codes.InvalidArgument, []string{"no device of nvidia.com/gpu"}},
		{"no device for the second container", request(uuids(0), nil), codes.InvalidArgument, []string{"container 2 of 2"}},
		{"unknown device", request([]string{uuid(0), "GPU-x"}), codes.NotFound, []string{`"GPU-x"`, "container 1 of 1"}},
		{"duplicate device", request(uuids(3, 3)), codes.InvalidArgument, []string{uuid(3)}},
		{"unhealthy and unknown", request([]string{uuid(4), "GPU-x"}), codes.NotFound, []string{`"GPU-x"`}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			response, err := r.client.Allocate(t.Context(), tc.request)
			if status.Code(err) != tc.code {
				t.Fatalf("Allocate = %v, %v; want %s", response, err, tc.code)
			}
			for _, part := range tc.want {
				if !strings.Contains(err.Error(), part) {
					t.Errorf("error %q does not contain %q", err, part)
				}
			}
			if strings.Contains(err.Error(), "\n") {
				t.Errorf("error %q has more than one line", err)
			}
		})
	}
	if calls := gateOf(p).recorded(); len(calls) > 0 {
		t.Errorf("invalid requests reached the gate: %v", calls)
	}
}

// Only the gate checks the health of devices, once for all containers of a request.
func TestAllocateCallsGate(t *testing.T) {
	r, p := connect(t, offer(bothWays, fault(4, "XID 79: fallen off the bus")))
	g := gateOf(p)
	g.refuse(fmt.Errorf("%w: refused by gate", allocator.ErrUnhealthy))
	response, err := r.client.Allocate(t.Context(), request(uuids(0), uuids(5, 4)))
	if status.Code(err) != codes.FailedPrecondition || !strings.Contains(err.Error(), "refused by gate") {
		t.Errorf("Allocate = %v, %v; want the error of the gate", response, err)
	}
	g.refuse(nil)
	if _, err := r.client.Allocate(t.Context(), request(uuids(4), uuids(4))); err != nil {
		t.Error(err)
	}
	want := []string{
		fmt.Sprint(allocator.GPUResource, uuids(0, 5, 4)),
		fmt.Sprint(allocator.GPUResource, uuids(4, 4)), // the same ID for two containers
	}
	if calls := g.recorded(); !slices.Equal(calls, want) {
		t.Errorf("calls of the gate: %v, want %v", calls, want)
	}
}

// BenchmarkCalls compares the calls of the kubelet with an empty call as the baseline.
func BenchmarkCalls(b *testing.B) {
	p := New(Config{Gate: &gate{}}, slog.New(slog.DiscardHandler))
	p.Update(offer(bothWays))
	socket := filepath.Join(b.TempDir(), "socket")
	listener, err := net.Listen("unix", socket)
	if err != nil {
		b.Fatal(err)
	}
	s, g := newServer(p), grpc.NewServer()
	api.RegisterDevicePluginServer(g, s)
	var serving sync.WaitGroup
	serving.Go(func() { _ = g.Serve(listener) })
	conn, err := grpc.NewClient("unix:"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		b.Fatal(err)
	}
	defer serving.Wait()
	defer s.stop(g)
	defer conn.Close()
	client, all := api.NewDevicePluginClient(conn), uuids(0, 1, 2, 3, 4, 5, 6, 7)
	for name, call := range map[string]func() error{
		"Empty": func() error {
			_, err := client.GetDevicePluginOptions(b.Context(), &api.Empty{})
			return err
		},
		"Allocate 1": func() error {
			_, err := client.Allocate(b.Context(), request(all[:1]))
			return err
		},
		"Allocate 8": func() error {
			_, err := client.Allocate(b.Context(), request(all))
			return err
		},
		"Prefer 4 of 8": func() error {
			_, err := client.GetPreferredAllocation(b.Context(), &api.PreferredAllocationRequest{
				ContainerRequests: []*api.ContainerPreferredAllocationRequest{{AvailableDeviceIDs: all, AllocationSize: 4}}})
			return err
		},
	} {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				if err := call(); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// shared returns an Offer of 8 GPUs with replicas of each.
func shared(replicas int) Offer {
	o := offer(bothWays)
	inv := &gpu.Inventory{}
	for _, d := range o.Resource.Devices {
		inv.GPUs = append(inv.GPUs, gpu.GPU{UUID: d.ID, NUMANode: d.NUMANode})
	}
	rules := allocator.Rules{{Name: allocator.GPUResource, Replicas: replicas}}
	o.Resource = allocator.Plan(inv, cdiKind, allocator.Policy{MIG: allocator.MIGNone, Rules: rules})[0]
	return o
}

// Several replicas of one GPU in a container result in one CDI device.
func TestAllocateReplicas(t *testing.T) {
	r, _ := connect(t, shared(4))
	if list := receive(t, r.lists, "the devices"); len(list.Devices) != 32 || list.Devices[5].ID != uuid(1)+"::1" {
		t.Errorf("advertised %v", list)
	}
	response, err := r.client.Allocate(t.Context(), request(
		[]string{uuid(5) + "::3", uuid(2) + "::0", uuid(5) + "::1"}, []string{uuid(5) + "::2"}))
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range [][]string{names(2, 5), names(5)} {
		got := response.ContainerResponses[i]
		if !slices.Equal(byField(got), want) || !slices.Equal(byAnnotation(t, got), want) {
			t.Errorf("container %d: field %v, annotation %v; want %v", i, byField(got), byAnnotation(t, got), want)
		}
	}
}

// A container with a replica whose compute time is limited gets the CDI device of the replica in addition.
func TestAllocateCeiledReplica(t *testing.T) {
	o := shared(4)
	for i := range o.Resource.Devices {
		o.Resource.Devices[i].Class, o.Resource.Devices[i].OneReplica = allocator.Ceiled, true
	}
	o.ReplicaKind = "gpucdi.dev/replica"
	o.ExtraDevices = []string{"gpucdi.dev/gds=all"}
	r, _ := connect(t, o)
	response, err := r.client.Allocate(t.Context(), request([]string{uuid(5) + "::3"}, []string{uuid(5) + "::0"}))
	if err != nil {
		t.Fatal(err)
	}
	for i, replica := range []string{"::3", "::0"} {
		want := append(names(5), "gpucdi.dev/gds=all", "gpucdi.dev/replica="+uuid(5)+replica+"-cbcbbfae")
		got := response.ContainerResponses[i]
		if !slices.Equal(byField(got), want) || !slices.Equal(byAnnotation(t, got), want) {
			t.Errorf("container %d: field %v, annotation %v; want %v", i, byField(got), byAnnotation(t, got), want)
		}
	}
	// OneReplica is not set on a draining replica whose rule was removed.
	for i := range o.Resource.Devices {
		o.Resource.Devices[i].OneReplica = false
	}
	r, _ = connect(t, o)
	if _, err := r.client.Allocate(t.Context(), request([]string{uuid(5) + "::3", uuid(6) + "::0"})); err == nil || !strings.Contains(err.Error(), "can have one replica with limited compute time") {
		t.Errorf("error %v", err)
	}
}

// The longest list fits into a message, even while draining devices are listed in addition to their replacements.
func TestLongestListFits(t *testing.T) {
	const limit = 4 << 20 // gRPC's default for received messages
	longest := newSnapshot(shared(allocator.MaxDevices / 8)).list
	for _, d := range longest.Devices {
		d.Health = api.Unhealthy // longer than Healthy
		d.ID += "0"              // the replica index has one more digit if one GPU has all replicas
	}
	if size := proto.Size(longest); len(longest.Devices) != allocator.MaxDevices || 2*size > limit {
		t.Errorf("%d devices take %d bytes; want at most half of %d", len(longest.Devices), size, limit)
	}
}
