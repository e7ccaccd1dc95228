package kubelet

import (
	api "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/gpucdi/gpucdi/allocator"
	"github.com/gpucdi/gpucdi/gpu"
	"github.com/gpucdi/gpucdi/internal/config"
)

// Offer is what the kubelet is told about a resource, and how containers are
// to get its devices. It must not be changed once it is given to Update.
type Offer struct {
	Resource *allocator.Resource

	// PassBy is how the CDI device names reach the runtime, at least one way.
	PassBy []config.PassBy
}

// snapshot is one Offer as the server answers from it.
type snapshot struct {
	Offer
	list       *api.ListAndWatchResponse
	superseded chan struct{} // closed when there is a later snapshot
}

func newSnapshot(o Offer) *snapshot {
	s := &snapshot{Offer: o, list: &api.ListAndWatchResponse{}, superseded: make(chan struct{})}
	for _, d := range o.Resource.Devices {
		s.list.Devices = append(s.list.Devices, describe(d))
	}
	return s
}

func describe(d allocator.Device) *api.Device {
	described := &api.Device{ID: d.ID, Health: api.Healthy}
	if d.Fault != "" {
		described.Health = api.Unhealthy
	}
	// An unknown node must stay nil: any node given here, -1 too, would become
	// a topology hint.
	if d.NUMANode != gpu.NUMAUnknown {
		described.Topology = &api.TopologyInfo{Nodes: []*api.NUMANode{{ID: int64(d.NUMANode)}}}
	}
	return described
}
