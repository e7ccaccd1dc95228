package kubelet

import (
	"context"
	"fmt"
	"path/filepath"

	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"
)

// Held asks the kubelet, whose directory is dir, for the devices of a resource
// that the containers of its active pods hold.
func Held(ctx context.Context, dir, resource string) (map[string]bool, error) {
	socket := filepath.Join(dir, "pod-resources", "kubelet.sock")
	conn, err := kubeletConn(socket)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	list, err := podresources.NewPodResourcesListerClient(conn).List(ctx, &podresources.ListPodResourcesRequest{})
	if err != nil {
		return nil, fmt.Errorf("asking the kubelet at %s who holds %s: %w", socket, resource, err)
	}
	held := map[string]bool{}
	for _, pod := range list.GetPodResources() {
		for _, container := range pod.GetContainers() {
			for _, devices := range container.GetDevices() {
				if devices.GetResourceName() != resource {
					continue
				}
				for _, id := range devices.GetDeviceIds() {
					held[id] = true
				}
			}
		}
	}
	return held, nil
}
