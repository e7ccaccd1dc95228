package kubelet

import (
	"context"
	"fmt"

	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"
)

// Holder is a container that holds a device: of the pod with that name, by the pod
// resources, or with that UID, by the checkpoint.
type Holder struct {
	Namespace, Pod, PodUID, Container string
	Resource, Device                  string // the device's resource and ID

	// CDI are the names that the container's devices of the resource have together, by the
	// checkpoint. They can include names of no device.
	CDI []string
}

// Held asks the kubelet at its socket for pod resources which containers hold devices. The
// answer omits init containers. It makes the kubelet drop what pods held that have ended.
func Held(ctx context.Context, socket string) ([]Holder, error) {
	conn, err := kubeletConn(socket)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	list, err := podresources.NewPodResourcesListerClient(conn).List(ctx, &podresources.ListPodResourcesRequest{})
	if err != nil {
		return nil, fmt.Errorf("asking the kubelet at %s who holds devices: %w", socket, err)
	}
	var held []Holder
	for _, pod := range list.GetPodResources() {
		for _, container := range pod.GetContainers() {
			for _, devices := range container.GetDevices() {
				for _, id := range devices.GetDeviceIds() {
					held = append(held, Holder{
						Namespace: pod.GetNamespace(), Pod: pod.GetName(), Container: container.GetName(),
						Resource: devices.GetResourceName(), Device: id,
					})
				}
			}
		}
	}
	return held, nil
}
