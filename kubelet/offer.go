package kubelet

import (
	"errors"

	api "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
	"tags.cncf.io/container-device-interface/pkg/cdi"

	"github.com/gpucdi/gpucdi/allocator"
	"github.com/gpucdi/gpucdi/gpu"
)

// Offer is what the kubelet is told about a resource, and how containers are
// to get its devices. It must not be changed once it is given to Update.
type Offer struct {
	Resource *allocator.Resource

	// PassBy is how the CDI device names reach the runtime, at least one way.
	PassBy []PassBy

	// With are CDI names that each container gets besides those of its devices.
	With []string
}

// snapshot is one Offer as the server answers from it.
type snapshot struct {
	Offer
	list       *api.ListAndWatchResponse // nil before the first Offer
	named      []named                   // as the resource's Devices
	resends    int                       // how often a list was sent although the kubelet knows it
	superseded chan struct{}             // closed when there is a later snapshot
}

// named is what Allocate says of a device, made and checked ahead.
type named struct {
	field *api.CDIDevice // with the device's CDI name
	key   string         // of an annotation whose first device this is
	err   error          // why the device cannot be passed by an annotation
}

func newSnapshot(o Offer) *snapshot {
	s := &snapshot{
		Offer:      o,
		list:       &api.ListAndWatchResponse{},
		named:      make([]named, 0, len(o.Resource.Devices)),
		superseded: make(chan struct{}),
	}
	for _, d := range o.Resource.Devices {
		for _, id := range d.IDs() {
			s.list.Devices = append(s.list.Devices, describe(id, d))
		}
		s.named = append(s.named, name(d))
	}
	return s
}

// annotator is what this plugin is called in the keys of CDI annotations.
const annotator = "gpucdi"

func name(d allocator.Device) named {
	key, errKey := cdi.AnnotationKey(annotator, d.ID)
	_, errName := cdi.AnnotationValue([]string{d.CDIName})
	return named{field: &api.CDIDevice{Name: d.CDIName}, key: key, err: errors.Join(errKey, errName)}
}

func describe(id string, d allocator.Device) *api.Device {
	described := &api.Device{ID: id, Health: api.Healthy}
	if !d.Healthy() {
		described.Health = api.Unhealthy
	}
	// An unknown node must stay nil: any node given here, -1 too, would become
	// a topology hint.
	if d.NUMANode != gpu.NUMAUnknown {
		described.Topology = &api.TopologyInfo{Nodes: []*api.NUMANode{{ID: int64(d.NUMANode)}}}
	}
	return described
}
