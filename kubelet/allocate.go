package kubelet

import (
	"context"
	"fmt"
	"slices"
	"strings"

	api "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/gpucdi/gpucdi/allocator"
)

// Allocate returns the CDI device names for each container of the request, or fails for all of them. The gate is
// called last, so that every grant results in a successful response.
func (s *server) Allocate(_ context.Context, request *api.AllocateRequest) (*api.AllocateResponse, error) {
	current := s.plugin.latest.Load()
	if len(request.GetContainerRequests()) == 0 {
		return nil, grpcError(fmt.Errorf("%w: no container in the request", allocator.ErrMalformed))
	}
	response := &api.AllocateResponse{}
	var ids []string
	for i, c := range request.GetContainerRequests() {
		container, err := current.respond(c.GetDevicesIds())
		if err != nil {
			return nil, grpcError(fmt.Errorf("allocating for container %d of %d: %w",
				i+1, len(request.GetContainerRequests()), err))
		}
		response.ContainerResponses = append(response.ContainerResponses, container)
		ids = append(ids, c.GetDevicesIds()...)
	}
	if err := s.plugin.cfg.Gate.Allocate(s.plugin.cfg.Resource, ids, s.preStart); err != nil {
		return nil, grpcError(fmt.Errorf("allocating: %w", err))
	}
	return response, nil
}

// respond returns the response for one container. The kubelet stores it in its checkpoint and reuses it whenever
// the container restarts, even after a reboot.
func (s *snapshot) respond(ids []string) (*api.ContainerAllocateResponse, error) {
	devices, err := s.Resource.Lookup(ids)
	if err != nil {
		return nil, err
	}
	extra, err := s.extraDevices(ids, devices)
	if err != nil {
		return nil, err
	}
	response := &api.ContainerAllocateResponse{}
	if slices.Contains(s.PassBy, ByField) {
		response.CdiDevices = make([]*api.CDIDevice, 0, len(devices)+len(extra))
		for _, d := range devices {
			response.CdiDevices = append(response.CdiDevices, s.cdiDevices[d].fields...)
		}
		for _, name := range extra {
			response.CdiDevices = append(response.CdiDevices, &api.CDIDevice{Name: name})
		}
	}
	if slices.Contains(s.PassBy, ByAnnotation) {
		response.Annotations, err = s.annotate(devices, extra)
	}
	return response, err
}

// annotate returns the CDI annotation that requests devices and extra CDI devices.
func (s *snapshot) annotate(devices []int, extra []string) (map[string]string, error) {
	names := make([]string, 0, len(devices)+len(extra))
	for _, d := range devices {
		device := &s.cdiDevices[d]
		if device.err != nil {
			return nil, fmt.Errorf("annotating with %s: %w", strings.Join(device.names, ", "), device.err)
		}
		names = append(names, device.names...)
	}
	// The kubelet merges the annotations of all resources of a container. The ID of the first device makes
	// the key unique among them.
	return map[string]string{s.cdiDevices[devices[0]].key: strings.Join(append(names, extra...), ",")}, nil
}
