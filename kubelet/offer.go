package kubelet

import (
	"errors"
	"fmt"
	"slices"

	api "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
	"tags.cncf.io/container-device-interface/pkg/cdi"

	"github.com/gpucdi/gpucdi/allocator"
	"github.com/gpucdi/gpucdi/gpu"
)

// Offer has the devices that a Plugin advertises, and the ways in which containers get them. It must not be modified
// after it is passed to Update.
type Offer struct {
	Resource *allocator.Resource

	// PassBy has the ways to pass CDI device names to the container runtime, at least one.
	PassBy []PassBy

	// ExtraDevices are CDI device names that each container gets in addition to those of its devices.
	ExtraDevices []string

	// ReplicaKind is the CDI kind of a device that a container with a replica of the class allocator.Ceiled gets in
	// addition. The name of that device is the allocator.ReplicaName.
	ReplicaKind string
}

// extraDevices returns the CDI device names that a container with these IDs gets in addition to those of its devices.
// devices are the positions of its devices in Resource.Devices. extraDevices returns an error if the container gets a
// replica of the class Ceiled with another device: a program can use the MPS server of only one replica.
func (o Offer) extraDevices(ids []string, devices []int) ([]string, error) {
	ceiled := func(i int) bool { return o.Resource.Devices[i].Class == allocator.Ceiled }
	switch {
	case !slices.ContainsFunc(devices, ceiled):
		return o.ExtraDevices, nil
	case len(ids) > 1:
		return nil, fmt.Errorf("%w: a container can have one replica with limited compute time, but %d devices are requested; request 1",
			allocator.ErrMalformed, len(ids))
	}
	name := allocator.ReplicaName(allocator.Key{Outlet: o.Resource.Name, ID: ids[0]})
	return append(slices.Clone(o.ExtraDevices), o.ReplicaKind+"="+name), nil
}

// snapshot is an Offer in the form the server needs. It is immutable.
type snapshot struct {
	Offer
	list       *api.ListAndWatchResponse // nil before the first Offer
	cdiDevices []cdiDevice               // in the order of Resource.Devices
	preStart   bool                      // the kubelet must call PreStartContainer
	resends    int                       // number of calls of Resend
	superseded chan struct{}             // closed when a later snapshot exists
}

// cdiDevice has the CDI devices of a device in the forms in which Allocate passes them to the runtime, validated in
// advance.
type cdiDevice struct {
	names  []string
	fields []*api.CDIDevice
	key    string // annotation key for containers that have this device as their first
	err    error  // set if the device cannot be passed by annotation
}

func newSnapshot(o Offer) *snapshot {
	s := &snapshot{
		Offer:      o,
		preStart:   o.Resource.MemoryLimited(),
		list:       &api.ListAndWatchResponse{},
		cdiDevices: make([]cdiDevice, 0, len(o.Resource.Devices)),
		superseded: make(chan struct{}),
	}
	for _, d := range o.Resource.Devices {
		for _, id := range d.IDs() {
			s.list.Devices = append(s.list.Devices, apiDevice(id, d))
		}
		s.cdiDevices = append(s.cdiDevices, newCDIDevice(d))
	}
	return s
}

// annotator is the plugin name in the keys of CDI annotations.
const annotator = "gpucdi"

func newCDIDevice(d allocator.Device) cdiDevice {
	key, errKey := cdi.AnnotationKey(annotator, d.ID)
	_, errName := cdi.AnnotationValue(d.CDINames)
	device := cdiDevice{names: d.CDINames, key: key, err: errors.Join(errKey, errName)}
	for _, name := range d.CDINames {
		device.fields = append(device.fields, &api.CDIDevice{Name: name})
	}
	return device
}

func apiDevice(id string, d allocator.Device) *api.Device {
	device := &api.Device{ID: id, Health: api.Healthy}
	if !d.Healthy() {
		device.Health = api.Unhealthy
	}
	// Without a known NUMA node, Topology must be nil: the Topology Manager derives a hint from any node, even -1.
	if d.NUMANode != gpu.NUMAUnknown {
		device.Topology = &api.TopologyInfo{Nodes: []*api.NUMANode{{ID: int64(d.NUMANode)}}}
	}
	return device
}
