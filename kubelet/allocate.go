package kubelet

import (
	"context"
	"fmt"
	"slices"

	api "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
	"tags.cncf.io/container-device-interface/pkg/cdi"

	"github.com/gpucdi/gpucdi/allocator"
	"github.com/gpucdi/gpucdi/internal/config"
)

// annotator is what this plugin is called in the keys of CDI annotations.
const annotator = "gpucdi"

// Allocate answers each container of the request with the CDI names of its
// devices, or refuses all of them.
func (s *server) Allocate(_ context.Context, request *api.AllocateRequest) (*api.AllocateResponse, error) {
	now := s.latest.Load()
	if len(request.GetContainerRequests()) == 0 {
		return nil, refusal(fmt.Errorf("%w: it names no container", allocator.ErrMalformed))
	}
	response := &api.AllocateResponse{}
	for i, c := range request.GetContainerRequests() {
		granted, err := now.grant(c.GetDevicesIds())
		if err != nil {
			return nil, refusal(fmt.Errorf("allocating for container %d of %d: %w", i+1, len(request.GetContainerRequests()), err))
		}
		response.ContainerResponses = append(response.ContainerResponses, granted)
	}
	return response, nil
}

// grant is the answer for one container. The kubelet keeps it and uses it
// again when the container restarts, even after a reboot.
func (s *snapshot) grant(ids []string) (*api.ContainerAllocateResponse, error) {
	devices, err := s.Resource.Lookup(ids)
	if err != nil {
		return nil, err
	}
	names := make([]string, len(devices))
	for i, d := range devices {
		names[i] = d.CDIName
	}
	granted := &api.ContainerAllocateResponse{}
	if slices.Contains(s.PassBy, config.ByField) {
		for _, name := range names {
			granted.CdiDevices = append(granted.CdiDevices, &api.CDIDevice{Name: name})
		}
	}
	if slices.Contains(s.PassBy, config.ByAnnotation) {
		// The kubelet merges the annotations of all resources of a container:
		// the first device makes the key unique among them.
		granted.Annotations, err = cdi.UpdateAnnotations(nil, annotator, devices[0].ID, names)
		if err != nil {
			return nil, err
		}
	}
	return granted, nil
}
