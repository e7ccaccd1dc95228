package kubelet_test

import (
	"context"
	"net"
	"path/filepath"
	"testing"

	"google.golang.org/grpc"
	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"

	"github.com/gpucdi/gpucdi/kubelet"
)

// fakeLister lists one pod that holds a device.
type fakeLister struct {
	podresources.UnimplementedPodResourcesListerServer
}

func (fakeLister) List(
	context.Context, *podresources.ListPodResourcesRequest,
) (*podresources.ListPodResourcesResponse, error) {
	return &podresources.ListPodResourcesResponse{PodResources: []*podresources.PodResources{{
		Name: "pod", Containers: []*podresources.ContainerResources{{
			Name:    "main",
			Devices: []*podresources.ContainerDevices{{ResourceName: "nvidia.com/gpu", DeviceIds: []string{"GPU-a"}}},
		}},
	}}}, nil
}

// After a kubelet restart, the next request reconnects.
func TestPodResourcesAfterKubeletRestart(t *testing.T) {
	p := kubelet.PodResources{Socket: filepath.Join(t.TempDir(), "kubelet.sock")}
	defer p.Close()
	if _, err := p.Holders(t.Context()); err == nil {
		t.Error("no error without a kubelet")
	}
	for range 2 {
		listener, err := net.Listen("unix", p.Socket)
		if err != nil {
			t.Fatal(err)
		}
		server := grpc.NewServer()
		podresources.RegisterPodResourcesListerServer(server, fakeLister{})
		go func() { _ = server.Serve(listener) }() // until Stop
		for range 2 {
			if holders, err := p.Holders(t.Context()); err != nil || len(holders) != 1 || holders[0].Pod != "pod" {
				t.Errorf("Holders = %v, %v; want one holder, in the pod named pod", holders, err)
			}
		}
		server.Stop()
	}
}
