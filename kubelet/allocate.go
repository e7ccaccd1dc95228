package kubelet

import (
	"context"
	"fmt"
	"slices"
	"strings"

	api "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/gpucdi/gpucdi/allocator"
)

// Allocate answers each container of the request with the CDI names of its
// devices, or refuses all of them. The gate is called last: what it grants is answered.
func (s *server) Allocate(_ context.Context, request *api.AllocateRequest) (*api.AllocateResponse, error) {
	now := s.plugin.latest.Load()
	if len(request.GetContainerRequests()) == 0 {
		return nil, refusal(fmt.Errorf("%w: it names no container", allocator.ErrMalformed))
	}
	response := &api.AllocateResponse{}
	var ids []string
	for i, c := range request.GetContainerRequests() {
		answer, err := now.answer(c.GetDevicesIds())
		if err != nil {
			return nil, refusal(fmt.Errorf("allocating for container %d of %d: %w", i+1, len(request.GetContainerRequests()), err))
		}
		response.ContainerResponses = append(response.ContainerResponses, answer)
		ids = append(ids, c.GetDevicesIds()...)
	}
	if err := s.plugin.cfg.Gate.Allocate(s.plugin.cfg.Resource, ids); err != nil {
		return nil, refusal(fmt.Errorf("allocating: %w", err))
	}
	return response, nil
}

// answer is the answer for one container. The kubelet keeps it and uses it
// again when the container restarts, even after a reboot.
func (s *snapshot) answer(ids []string) (*api.ContainerAllocateResponse, error) {
	devices, err := s.Resource.Lookup(ids)
	if err != nil {
		return nil, err
	}
	answer := &api.ContainerAllocateResponse{}
	if slices.Contains(s.PassBy, ByField) {
		answer.CdiDevices = make([]*api.CDIDevice, 0, len(devices)+len(s.With))
		for _, d := range devices {
			answer.CdiDevices = append(answer.CdiDevices, s.named[d].field)
		}
		for _, name := range s.With {
			answer.CdiDevices = append(answer.CdiDevices, &api.CDIDevice{Name: name})
		}
	}
	if slices.Contains(s.PassBy, ByAnnotation) {
		answer.Annotations, err = s.annotate(devices)
	}
	return answer, err
}

// annotate writes the devices' names as CDI's annotation has them.
func (s *snapshot) annotate(devices []int) (map[string]string, error) {
	names := make([]string, 0, len(devices)+len(s.With))
	for _, d := range devices {
		name := s.named[d].field.Name
		if err := s.named[d].err; err != nil {
			return nil, fmt.Errorf("annotating with %s: %w", name, err)
		}
		names = append(names, name)
	}
	// The kubelet merges the annotations of all resources of a container: the
	// first device makes the key unique among them.
	return map[string]string{s.named[devices[0]].key: strings.Join(append(names, s.With...), ",")}, nil
}
