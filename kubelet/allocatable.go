package kubelet

import (
	"context"
	"fmt"

	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"

	"github.com/gpucdi/gpucdi/allocator"
	"github.com/gpucdi/gpucdi/internal/unixgrpc"
)

// Allocatable returns the devices that the kubelet at a socket for pod resources considers
// healthy, of all plugins. It has none of a plugin whose first list it has not processed.
// The answer is bounded by gRPC's limit of 4 MiB, as lists are.
func Allocatable(ctx context.Context, socket string) (map[allocator.Key]bool, error) {
	conn, err := unixgrpc.NewClient(socket)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	answer, err := podresources.NewPodResourcesListerClient(conn).GetAllocatableResources(ctx, &podresources.AllocatableResourcesRequest{})
	if err != nil {
		return nil, fmt.Errorf("asking the kubelet at %s for its allocatable devices: %w", socket, err)
	}
	ids := map[allocator.Key]bool{}
	for _, devices := range answer.GetDevices() {
		for _, id := range devices.GetDeviceIds() {
			ids[allocator.Key{Outlet: devices.GetResourceName(), ID: id}] = true
		}
	}
	return ids, nil
}
