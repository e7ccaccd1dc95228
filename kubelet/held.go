package kubelet

import (
	"context"
	"fmt"

	"google.golang.org/grpc"
	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"

	"github.com/gpucdi/gpucdi/internal/unixgrpc"
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

// PodResources requests from the kubelet which containers hold devices, over a connection that it keeps
// between requests. It is for one goroutine at a time.
type PodResources struct {
	Socket string // for pod resources

	conn *grpc.ClientConn // of the latest request; nil if that failed
}

// Held is the function Held, over the connection of the request before if the kubelet still has it.
func (p *PodResources) Held(ctx context.Context) ([]Holder, error) {
	if p.conn != nil {
		if held, err := listHeld(ctx, p.conn, p.Socket); err == nil {
			return held, nil
		}
		p.Close() // the kubelet may have restarted
	}
	conn, err := unixgrpc.NewClient(p.Socket)
	if err != nil {
		return nil, err
	}
	p.conn = conn
	held, err := listHeld(ctx, conn, p.Socket)
	if err != nil {
		p.Close()
	}
	return held, err
}

// Close closes the connection. The next request makes another.
func (p *PodResources) Close() {
	if p.conn != nil {
		_ = p.conn.Close() // nothing is lost
		p.conn = nil
	}
}

// Held asks the kubelet at its socket for pod resources which containers hold devices. The
// answer omits init containers. It makes the kubelet drop what pods held that have ended.
func Held(ctx context.Context, socket string) ([]Holder, error) {
	p := PodResources{Socket: socket}
	defer p.Close()
	return p.Held(ctx)
}

func listHeld(ctx context.Context, conn *grpc.ClientConn, socket string) ([]Holder, error) {
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
