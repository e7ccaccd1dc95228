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

// Pod is a pod with the devices of all its containers, including devices of other device plugins.
type Pod struct {
	UID     string
	Devices []allocator.Key // in any order
	CDI     []string        // CDI device names of its containers, from their checkpointed Allocate responses, in any order
}

// rewriteTimeout bounds the wait for the kubelet to rewrite its checkpoint.
const rewriteTimeout = 2 * time.Second

// PreStartContainer calls Config.PreStart with the pod of a container. The kubelet calls it before each start of a
// container with a device of the resource, if the registration required it. After an error, the kubelet does not start
// the container, and retries.
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
	var holders []Pod
	complete := false
	for _, pod := range c.Pods() {
		held := 0
		for _, key := range pod.Devices {
			if key.Outlet == resource && slices.Contains(ids, key.ID) {
				held++
			}
		}
		if held > 0 {
			holders, complete = append(holders, pod), held == len(ids)
		}
	}
	if len(holders) == 1 && complete {
		return holders[0], nil
	}
	return Pod{}, fmt.Errorf("identifying the pod of %d devices of %s: want one pod with all of them in the kubelet's checkpoint, found %d with at least one",
		len(ids), resource, len(holders))
}

// Pods returns the pods with devices, in any order. Some may have ended. The kubelet reuses the devices of a
// regular init container for later containers, so each device of a pod is returned once.
func (c Checkpoint) Pods() []Pod {
	devices, names := map[string]map[allocator.Key]bool{}, map[string]map[string]bool{}
	for _, h := range c.Holders {
		if devices[h.PodUID] == nil {
			devices[h.PodUID], names[h.PodUID] = map[allocator.Key]bool{}, map[string]bool{}
		}
		devices[h.PodUID][allocator.Key{Outlet: h.Resource, ID: h.Device}] = true
		for _, name := range h.CDI {
			names[h.PodUID][name] = true
		}
	}
	pods := make([]Pod, 0, len(devices))
	for uid, keys := range devices {
		pods = append(pods, Pod{UID: uid, Devices: slices.Collect(maps.Keys(keys)), CDI: slices.Collect(maps.Keys(names[uid]))})
	}
	return pods
}
