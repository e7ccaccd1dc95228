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

// fakeLister is a pod resources server with allocatable devices.
type fakeLister struct {
	podresources.UnimplementedPodResourcesListerServer
	devices []*podresources.ContainerDevices
}

func (l *fakeLister) GetAllocatableResources(context.Context, *podresources.AllocatableResourcesRequest) (*podresources.AllocatableResourcesResponse, error) {
	return &podresources.AllocatableResourcesResponse{Devices: l.devices}, nil
}

// serveLister serves until the test ends and returns the socket.
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

// containerDevices returns IDs in the form in which the kubelet reports them: one per entry, with topology.
func containerDevices(resource string, ids ...string) (all []*podresources.ContainerDevices) {
	for _, id := range ids {
		all = append(all, &podresources.ContainerDevices{ResourceName: resource, DeviceIds: []string{id},
			Topology: &podresources.TopologyInfo{Nodes: []*podresources.NUMANode{{ID: 1}}}})
	}
	return all
}

func TestAllocatable(t *testing.T) {
	socket := serveLister(t, &fakeLister{devices: append(
		containerDevices("nvidia.com/gpu", "GPU-a", "GPU-b"), containerDevices("example.com/nic", "GPU-a")...)})
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

// The maximum number of devices fits into a response; a larger response is an error.
func TestAllocatableSizeLimit(t *testing.T) {
	ids := make([]string, allocator.MaxDevices)
	for i := range ids {
		ids[i] = fmt.Sprintf("MIG-00000000-1111-2222-3333-444444444444::%d", i)
	}
	socket := serveLister(t, &fakeLister{devices: containerDevices("nvidia.com/mig-1g.5gb", ids...)})
	got, err := Allocatable(t.Context(), socket)
	if err != nil || len(got) != allocator.MaxDevices {
		t.Errorf("Allocatable = %d devices, %v; want %d", len(got), err, allocator.MaxDevices)
	}
	socket = serveLister(t, &fakeLister{devices: containerDevices("example.com/nic", strings.Repeat("x", 4<<20))})
	if got, err := Allocatable(t.Context(), socket); status.Code(err) != codes.ResourceExhausted {
		t.Errorf("oversized response: %d devices, %v; want ResourceExhausted", len(got), err)
	}
}

func TestAllocatableErrors(t *testing.T) {
	socket := serveLister(t, podresources.UnimplementedPodResourcesListerServer{})
	got, err := Allocatable(t.Context(), socket)
	if status.Code(err) != codes.Unimplemented || !strings.Contains(err.Error(), socket) {
		t.Errorf("Allocatable = %v, %v; want an error with %s", got, err, socket)
	}
}
