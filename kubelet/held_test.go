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

// onePod reports a pod that holds a device.
type onePod struct {
	podresources.UnimplementedPodResourcesListerServer
}

func (onePod) List(context.Context, *podresources.ListPodResourcesRequest) (*podresources.ListPodResourcesResponse, error) {
	return &podresources.ListPodResourcesResponse{PodResources: []*podresources.PodResources{{
		Name: "pod", Containers: []*podresources.ContainerResources{{
			Name: "main", Devices: []*podresources.ContainerDevices{{ResourceName: "nvidia.com/gpu", DeviceIds: []string{"GPU-a"}}},
		}},
	}}}, nil
}

// A kept connection outlives no kubelet, and the next request makes another.
func TestPodResourcesAfterAKubeletRestart(t *testing.T) {
	p := kubelet.PodResources{Socket: filepath.Join(t.TempDir(), "kubelet.sock")}
	defer p.Close()
	if _, err := p.Held(t.Context()); err == nil {
		t.Error("there is an answer before there is a kubelet")
	}
	for range 2 {
		listener, err := net.Listen("unix", p.Socket)
		if err != nil {
			t.Fatal(err)
		}
		server := grpc.NewServer()
		podresources.RegisterPodResourcesListerServer(server, onePod{})
		go func() { _ = server.Serve(listener) }() // until Stop
		for range 2 {
			if held, err := p.Held(t.Context()); err != nil || len(held) != 1 || held[0].Pod != "pod" {
				t.Errorf("%v, %v", held, err)
			}
		}
		server.Stop()
	}
}
