package kubelet

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	api "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/gpucdi/gpucdi/allocator"
	"github.com/gpucdi/gpucdi/gpu"
)

// Pod is a pod and the devices of all its containers, of this and other device plugins.
type Pod struct {
	UID     string
	Devices []allocator.Key // in any order
}

// rewriteTimeout bounds the wait for the kubelet to rewrite its checkpoint.
const rewriteTimeout = 2 * time.Second

// PreStartContainer calls Config.PreStart with the pod of a container. The kubelet calls it before each start of a
// container with a device of the resource, if the registration required that. After an error it does not start the
// container, and retries.
func (s *server) PreStartContainer(ctx context.Context, request *api.PreStartContainerRequest) (*api.PreStartContainerResponse, error) {
	if !s.preStart {
		return &api.PreStartContainerResponse{}, nil
	}
	pod, err := s.plugin.podOf(ctx, request.GetDevicesIds())
	if err == nil {
		err = s.plugin.cfg.PreStart(ctx, s.plugin.cfg.Resource, pod)
	}
	if err != nil {
		return nil, status.Error(codes.FailedPrecondition, gpu.OneLine(err))
	}
	return &api.PreStartContainerResponse{}, nil
}

// podOf returns the pod that holds all of these devices of the resource. If the kubelet's checkpoint does not identify
// it, for example because the file was deleted, podOf makes the kubelet rewrite the file.
func (p *Plugin) podOf(ctx context.Context, ids []string) (Pod, error) {
	c, err := ReadCheckpoint(p.cfg.Dir)
	if err == nil {
		var pod Pod
		if pod, err = c.podOf(p.cfg.Resource, ids); err == nil {
			return pod, nil
		}
	}
	ctx, cancel := context.WithTimeout(ctx, rewriteTimeout)
	defer cancel()
	p.Resend()
	if c, rewriteErr := c.After(ctx, p.cfg.Dir); rewriteErr == nil {
		return c.podOf(p.cfg.Resource, ids)
	}
	return Pod{}, err
}

// podOf returns the pod that holds all of these devices of a resource.
func (c Checkpoint) podOf(resource string, ids []string) (Pod, error) {
	holders := map[string]map[string]bool{} // device IDs by pod UID
	for _, h := range c.Holders {
		if h.Resource == resource && slices.Contains(ids, h.Device) {
			if holders[h.PodUID] == nil {
				holders[h.PodUID] = map[string]bool{}
			}
			holders[h.PodUID][h.Device] = true
		}
	}
	for uid, held := range holders {
		if len(holders) == 1 && len(held) == len(ids) {
			return Pod{UID: uid, Devices: c.devices(uid)}, nil
		}
	}
	return Pod{}, fmt.Errorf("identifying the pod of %d devices of %s: want one pod with all of them in the kubelet's checkpoint, found %d",
		len(ids), resource, len(holders))
}

// devices returns the devices of a pod, each once: a regular init container shares its devices with later containers.
func (c Checkpoint) devices(podUID string) []allocator.Key {
	keys := map[allocator.Key]bool{}
	for _, h := range c.Holders {
		if h.PodUID == podUID {
			keys[allocator.Key{Outlet: h.Resource, ID: h.Device}] = true
		}
	}
	return slices.Collect(maps.Keys(keys))
}
