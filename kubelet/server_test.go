package kubelet

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	api "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/gpucdi/gpucdi/allocator"
	"github.com/gpucdi/gpucdi/gpu"
)

const cdiKind = "example.com/gpu"

var bothWays = []PassBy{ByField, ByAnnotation}

// uuid returns the UUID of GPU n. It has the length of a real UUID.
func uuid(n int) string { return fmt.Sprintf("GPU-%08d-1111-2222-3333-444444444444", n) }

func uuids(numbers ...int) (ids []string) {
	for _, n := range numbers {
		ids = append(ids, uuid(n))
	}
	return ids
}

// offer returns an Offer of 8 GPUs on two NUMA nodes, with NVLinks between 0-4, 1-5, 2-6 and 3-7. Each change may
// modify the GPUs first.
func offer(passBy []PassBy, change ...func(gpus []gpu.GPU)) Offer {
	inv := &gpu.Inventory{}
	for i := range 8 {
		inv.GPUs = append(inv.GPUs, gpu.GPU{UUID: uuid(i), Index: i, NUMANode: i / 4,
			Links: []gpu.Link{{Peer: uuid((i + 4) % 8), NVLinks: 4}}})
	}
	for _, c := range change {
		c(inv.GPUs)
	}
	return Offer{Resource: allocator.Plan(inv, cdiKind, allocator.Policy{MIG: allocator.MIGNone})[0], PassBy: passBy}
}

func fault(n int, reason string) func([]gpu.GPU) {
	return func(gpus []gpu.GPU) { gpus[n].Fault = gpu.Fault{Code: gpu.FaultUnresponsive, Message: reason} }
}

func testConfig(dir string) Config {
	return Config{Dir: dir, Resource: allocator.GPUResource, Gate: &gate{}}
}

// connect runs a plugin with an Offer and returns its registration with a fake kubelet.
func connect(t *testing.T, o Offer) (registration, *Plugin) {
	t.Helper()
	dir := t.TempDir()
	kubelet := newFakeKubelet(t, dir).start()
	p := New(testConfig(dir), testLog(t))
	p.Update(o)
	runPlugin(t, p)
	return kubelet.next(), p
}

func TestOptions(t *testing.T) {
	r, _ := connect(t, offer(bothWays))
	want := &api.DevicePluginOptions{GetPreferredAllocationAvailable: true}
	if !proto.Equal(r.options, want) || !proto.Equal(r.request.Options, want) {
		t.Errorf("options %v, in the registration %v; want %v", r.options, r.request.Options, want)
	}
	if r.request.Version != "v1beta1" || r.request.ResourceName != "nvidia.com/gpu" {
		t.Errorf("registered as %v", r.request)
	}
	if _, err := r.client.PreStartContainer(t.Context(), &api.PreStartContainerRequest{DevicesIds: uuids(1)}); err != nil {
		t.Errorf("PreStartContainer: %v", err)
	}
}

func TestListAndWatch(t *testing.T) {
	r, p := connect(t, offer(bothWays, fault(5, "ECC"),
		func(gpus []gpu.GPU) { gpus[7].NUMANode = gpu.NUMAUnknown }))
	list := receive(t, r.lists, "the devices")
	if len(list.Devices) != 8 {
		t.Fatalf("%d devices, want 8", len(list.Devices))
	}
	for i, d := range list.Devices {
		want := &api.Device{ID: uuid(i), Health: "Healthy",
			Topology: &api.TopologyInfo{Nodes: []*api.NUMANode{{ID: int64(i / 4)}}}}
		switch i {
		case 5:
			want.Health = "Unhealthy"
		case 7:
			want.Topology = nil
		}
		if !proto.Equal(d, want) {
			t.Errorf("device %d is %v, want %v", i, d, want)
		}
	}

	p.Update(offer(bothWays))
	if list := receive(t, r.lists, "the devices after the recovery"); list.Devices[5].Health != "Healthy" {
		t.Errorf("after the recovery: %v", list.Devices[5])
	}

	// An update that does not change the list is not sent.
	p.Update(offer(bothWays))
	p.Update(offer(nil))
	p.Update(offer(bothWays, fault(0, "XID")))
	if list := receive(t, r.lists, "the next devices"); list.Devices[0].Health != "Unhealthy" {
		t.Errorf("unchanged list sent: %v", list)
	}
}

func TestListAndWatchWithoutDevices(t *testing.T) {
	empty := allocator.Plan(&gpu.Inventory{}, cdiKind, allocator.Policy{MIG: allocator.MIGNone})[0]
	r, p := connect(t, Offer{Resource: empty, PassBy: bothWays})
	if list := receive(t, r.lists, "an empty list"); len(list.Devices) != 0 {
		t.Errorf("list of a node without GPUs: %v", list)
	}
	p.Update(offer(bothWays))
	if list := receive(t, r.lists, "the new GPUs"); len(list.Devices) != 8 {
		t.Errorf("%d devices, want 8", len(list.Devices))
	}
}

func TestSlowReaderGetsLatestList(t *testing.T) {
	p := New(Config{}, testLog(t))
	p.Update(offer(bothWays))
	s := newServer(p)
	stream := &slowStream{ctx: t.Context(), sends: make(chan *api.ListAndWatchResponse), received: make(chan struct{})}
	ended := make(chan error, 1)
	go func() { ended <- s.ListAndWatch(nil, stream) }()

	receive(t, stream.sends, "the first list")
	for i := range 1000 { // each list differs from the previous one
		p.Update(offer(bothWays, fault(i%8, "ECC")))
	}
	stream.received <- struct{}{}
	if list := receive(t, stream.sends, "the second list"); list.Devices[999%8].Health != "Unhealthy" {
		t.Errorf("second list is not the latest: %v", list)
	}
	close(s.stopping)
	stream.received <- struct{}{}
	if err := receive(t, ended, "the end of the stream"); err != nil {
		t.Errorf("ListAndWatch = %v", err)
	}
}

func TestGetPreferredAllocation(t *testing.T) {
	r, _ := connect(t, offer(bothWays, fault(4, "ECC")))
	request := func(size int32, available, required []string) *api.ContainerPreferredAllocationRequest {
		return &api.ContainerPreferredAllocationRequest{
			AllocationSize: size, AvailableDeviceIDs: available, MustIncludeDeviceIDs: required}
	}
	all := uuids(7, 6, 5, 4, 3, 2, 1, 0)
	response, err := r.client.GetPreferredAllocation(t.Context(), &api.PreferredAllocationRequest{
		ContainerRequests: []*api.ContainerPreferredAllocationRequest{request(2, all, nil), request(2, all, uuids(7))}})
	if err != nil {
		t.Fatal(err)
	}
	if got := response.ContainerResponses; len(got) != 2 ||
		!slices.Equal(got[0].DeviceIDs, uuids(1, 5)) || !slices.Equal(got[1].DeviceIDs, uuids(3, 7)) {
		t.Errorf("preferred %v, want 1-5 and 3-7", got)
	}
	for _, tc := range []struct {
		name    string
		request *api.ContainerPreferredAllocationRequest
		code    codes.Code
		want    string
	}{
		{"too many devices", request(3, uuids(0, 1), nil), codes.InvalidArgument, "3 devices"},
		{"unknown device required", request(1, all, []string{"GPU-x"}), codes.NotFound, "GPU-x"},
		{"too few healthy devices", request(2, uuids(0, 4), nil), codes.FailedPrecondition, uuid(4)},
	} {
		_, err := r.client.GetPreferredAllocation(t.Context(), &api.PreferredAllocationRequest{
			ContainerRequests: []*api.ContainerPreferredAllocationRequest{tc.request}})
		if status.Code(err) != tc.code || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: %v; want %s with %q", tc.name, err, tc.code, tc.want)
		}
	}
}

// The number of open streams is bounded. Closing one allows another.
func TestStreamLimit(t *testing.T) {
	r, _ := connect(t, offer(bothWays))
	receive(t, r.lists, "the kubelet's list")
	open := func() (context.CancelFunc, error) {
		ctx, cancel := context.WithCancel(t.Context())
		stream, err := r.client.ListAndWatch(ctx, &api.Empty{})
		if err == nil {
			_, err = stream.Recv()
		}
		return cancel, err
	}
	var ends []context.CancelFunc
	for len(ends) < maxStreams-1 { // the fake kubelet has one open
		end, err := open()
		defer end()
		if err != nil {
			t.Fatalf("stream %d: %v", len(ends)+2, err)
		}
		ends = append(ends, end)
	}
	for range 100 {
		end, err := open()
		defer end()
		if status.Code(err) != codes.ResourceExhausted {
			t.Fatalf("stream above the limit: %v, want ResourceExhausted", err)
		}
	}
	ends[0]()
	for start := time.Now(); ; time.Sleep(time.Millisecond) {
		end, err := open()
		defer end()
		if err == nil {
			break
		}
		if time.Since(start) > testTimeout {
			t.Fatalf("after closing a stream: %v", err)
		}
	}
}
