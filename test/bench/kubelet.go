package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"path/filepath"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/proto"
	api "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

// kubelet is a fake kubelet, which only accepts registrations of device plugins.
type kubelet struct {
	api.UnimplementedRegistrationServer
	dir     string
	server  *grpc.Server
	plugins chan *grpc.ClientConn // connections to registered plugins
}

// listen serves the registration API in dir, the device-plugins directory.
func listen(ctx context.Context, dir string) (*kubelet, error) {
	socket, err := new(net.ListenConfig).Listen(ctx, "unix", filepath.Join(dir, "kubelet.sock"))
	if err != nil {
		return nil, fmt.Errorf("listening as the kubelet: %w", err)
	}
	k := &kubelet{dir: dir, server: grpc.NewServer(), plugins: make(chan *grpc.ClientConn, 1)}
	api.RegisterRegistrationServer(k.server, k)
	go func() { _ = k.server.Serve(socket) }() // until close
	return k, nil
}

func (k *kubelet) close() { k.server.Stop() }

// Register calls the plugin before it responds, like the kubelet.
func (k *kubelet) Register(ctx context.Context, request *api.RegisterRequest) (*api.Empty, error) {
	conn, err := grpc.NewClient("unix://"+filepath.Join(k.dir, request.GetEndpoint()),
		grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return nil, err
	}
	if _, err := api.NewDevicePluginClient(conn).GetDevicePluginOptions(ctx, &api.Empty{}); err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	k.plugins <- conn
	return &api.Empty{}, nil
}

// awaitDevices waits until the plugin at conn lists count healthy devices, and returns their IDs. The stream stays open
// until ctx ends. size is the size of the list, in bytes.
func awaitDevices(ctx context.Context, conn *grpc.ClientConn, count int) (healthy []string, size int, err error) {
	stream, err := api.NewDevicePluginClient(conn).ListAndWatch(ctx, &api.Empty{})
	if err != nil {
		return nil, 0, fmt.Errorf("calling ListAndWatch: %w", err)
	}
	for {
		list, err := stream.Recv()
		if err != nil {
			return nil, 0, fmt.Errorf("waiting for devices: %w", err)
		}
		healthy = healthy[:0]
		for _, d := range list.GetDevices() {
			if d.GetHealth() == api.Healthy {
				healthy = append(healthy, d.GetID())
			}
		}
		if len(healthy) == count {
			return healthy, proto.Size(list), nil
		}
	}
}
