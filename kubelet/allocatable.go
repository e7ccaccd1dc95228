package kubelet

import (
	"context"
	"fmt"

	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"

	"github.com/gpucdi/gpucdi/allocator"
	"github.com/gpucdi/gpucdi/internal/unixgrpc"
)

// Allocatable returns the devices that the kubelet considers healthy, of all plugins, through the pod resources
// API at socket. Devices of a plugin whose first list the kubelet has not processed are missing. The response is
// limited to gRPC's default of 4 MiB.
func Allocatable(ctx context.Context, socket string) (map[allocator.Key]bool, error) {
	conn, err := unixgrpc.NewClient(socket)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	client := podresources.NewPodResourcesListerClient(conn)
	response, err := client.GetAllocatableResources(ctx, &podresources.AllocatableResourcesRequest{})
	if err != nil {
		return nil, fmt.Errorf("getting allocatable devices from the kubelet at %s: %w", socket, err)
	}
	ids := map[allocator.Key]bool{}
	for _, devices := range response.GetDevices() {
		for _, id := range devices.GetDeviceIds() {
			ids[allocator.Key{Outlet: devices.GetResourceName(), ID: id}] = true
		}
	}
	return ids, nil
}
