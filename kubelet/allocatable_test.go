package kubelet

import (
	"context"
	"fmt"
	"maps"
	"net"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"

	"github.com/gpucdi/gpucdi/allocator"
)

// lister is a kubelet's server for pod resources with these allocatable devices.
type lister struct {
	podresources.UnimplementedPodResourcesListerServer
	devices []*podresources.ContainerDevices
}

func (l *lister) GetAllocatableResources(context.Context, *podresources.AllocatableResourcesRequest) (*podresources.AllocatableResourcesResponse, error) {
	return &podresources.AllocatableResourcesResponse{Devices: l.devices}, nil
}

// serveLister serves for the test's length and returns the socket.
func serveLister(t *testing.T, l podresources.PodResourcesListerServer) string {
	t.Helper()
	socket := filepath.Join(t.TempDir(), "kubelet.sock")
	listener, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	podresources.RegisterPodResourcesListerServer(server, l)
	var serving sync.WaitGroup
	serving.Go(func() { _ = server.Serve(listener) })
	t.Cleanup(func() { server.Stop(); serving.Wait() })
	return socket
}

// devices are IDs of a resource as the kubelet answers them: one by one, with their topology.
func devices(resource string, ids ...string) (all []*podresources.ContainerDevices) {
	for _, id := range ids {
		all = append(all, &podresources.ContainerDevices{ResourceName: resource, DeviceIds: []string{id},
			Topology: &podresources.TopologyInfo{Nodes: []*podresources.NUMANode{{ID: 1}}}})
	}
	return all
}

func TestAllocatable(t *testing.T) {
	socket := serveLister(t, &lister{devices: append(devices("nvidia.com/gpu", "GPU-a", "GPU-b"), devices("example.com/nic", "GPU-a")...)})
	got, err := Allocatable(t.Context(), socket)
	want := map[allocator.Key]bool{
		{Outlet: "nvidia.com/gpu", ID: "GPU-a"}:  true,
		{Outlet: "nvidia.com/gpu", ID: "GPU-b"}:  true,
		{Outlet: "example.com/nic", ID: "GPU-a"}: true,
	}
	if err != nil || !maps.Equal(got, want) {
		t.Errorf("Allocatable = %v, %v; want %v", got, err, want)
	}
}

// As many devices as can be offered fit into an answer; the answer has a limit.
func TestAllocatableLimits(t *testing.T) {
	ids := make([]string, allocator.MaxDevices)
	for i := range ids {
		ids[i] = fmt.Sprintf("MIG-00000000-1111-2222-3333-444444444444::%d", i)
	}
	got, err := Allocatable(t.Context(), serveLister(t, &lister{devices: devices("nvidia.com/mig-1g.5gb", ids...)}))
	if err != nil || len(got) != allocator.MaxDevices {
		t.Errorf("%d devices, %v; want %d", len(got), err, allocator.MaxDevices)
	}
	socket := serveLister(t, &lister{devices: devices("example.com/nic", strings.Repeat("x", 4<<20))})
	if got, err := Allocatable(t.Context(), socket); status.Code(err) != codes.ResourceExhausted {
		t.Errorf("an answer above the limit: %d devices, %v", len(got), err)
	}
}

func TestAllocatableErrors(t *testing.T) {
	socket := serveLister(t, podresources.UnimplementedPodResourcesListerServer{})
	if got, err := Allocatable(t.Context(), socket); status.Code(err) != codes.Unimplemented || !strings.Contains(err.Error(), socket) {
		t.Errorf("Allocatable = %v, %v; want an error that names %s", got, err, socket)
	}
}
