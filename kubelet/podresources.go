package kubelet

import (
	"context"
	"fmt"

	"google.golang.org/grpc"
	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"

	"github.com/gpucdi/gpucdi/internal/unixgrpc"
)

// Holder is a container and a device allocated to it. The pod resources API identifies the pod by Namespace and
// Pod, the checkpoint by PodUID.
type Holder struct {
	Namespace, Pod, PodUID, Container string
	Resource, Device                  string // resource name and device ID, or DRA driver and device name

	// Claim is the name of the ResourceClaim in Namespace through which the container has the device; empty for a
	// device of a device plugin.
	Claim string

	// CDI has the CDI device names for all devices of the resource in the container, including those of
	// Offer.ExtraDevices. Only the checkpoint has them.
	CDI []string
}

// PodResources is a client of the pod resources API that reuses its connection. It is not safe for concurrent use.
type PodResources struct {
	Socket string

	conn *grpc.ClientConn // nil before the first request and after a failed one
}

// Holders is like the function Holders. It uses the open connection, or a new one if there is none or the request on it
// fails.
func (p *PodResources) Holders(ctx context.Context) ([]Holder, error) {
	if p.conn != nil {
		if holders, err := listHolders(ctx, p.conn, p.Socket); err == nil {
			return holders, nil
		}
		p.Close() // the kubelet may have restarted
	}
	conn, err := unixgrpc.NewClient(p.Socket)
	if err != nil {
		return nil, err
	}
	p.conn = conn
	holders, err := listHolders(ctx, conn, p.Socket)
	if err != nil {
		p.Close()
	}
	return holders, err
}

// Close closes the connection. The next request opens a new one.
func (p *PodResources) Close() {
	if p.conn != nil {
		_ = p.conn.Close()
		p.conn = nil
	}
}

// Holders lists the containers that hold devices, through the pod resources API at socket. Init containers other than
// sidecars are missing. As a side effect, the kubelet releases the devices of pods that have ended.
func Holders(ctx context.Context, socket string) ([]Holder, error) {
	p := PodResources{Socket: socket}
	defer p.Close()
	return p.Holders(ctx)
}

func listHolders(ctx context.Context, conn *grpc.ClientConn, socket string) ([]Holder, error) {
	response, err := podresources.NewPodResourcesListerClient(conn).List(ctx, &podresources.ListPodResourcesRequest{})
	if err != nil {
		return nil, fmt.Errorf("listing pod resources from the kubelet at %s: %w", socket, err)
	}
	var holders []Holder
	for _, pod := range response.GetPodResources() {
		for _, container := range pod.GetContainers() {
			for _, devices := range container.GetDevices() {
				for _, id := range devices.GetDeviceIds() {
					holders = append(holders, Holder{
						Namespace: pod.GetNamespace(), Pod: pod.GetName(), Container: container.GetName(),
						Resource: devices.GetResourceName(), Device: id,
					})
				}
			}
			for _, claim := range container.GetDynamicResources() {
				for _, device := range claim.GetClaimResources() {
					holders = append(holders, Holder{
						Namespace: pod.GetNamespace(), Pod: pod.GetName(), Container: container.GetName(),
						Resource: device.GetDriverName(), Device: device.GetDeviceName(), Claim: claim.GetClaimName(),
					})
				}
			}
		}
	}
	return holders, nil
}
