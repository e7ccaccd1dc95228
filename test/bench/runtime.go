package main

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"

	"google.golang.org/grpc"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// containerd answers what the agent asks the runtime of a node. Without one the agent would
// keep looking for it, as on no node that works.
type containerd struct {
	cri.UnimplementedRuntimeServiceServer
}

func (containerd) Version(context.Context, *cri.VersionRequest) (*cri.VersionResponse, error) {
	return &cri.VersionResponse{RuntimeName: "containerd", RuntimeVersion: "v2.4.2", RuntimeApiVersion: "v1"}, nil
}

func (containerd) Status(context.Context, *cri.StatusRequest) (*cri.StatusResponse, error) {
	return &cri.StatusResponse{Info: map[string]string{"config": "{}"}}, nil
}

func (containerd) ListContainers(context.Context, *cri.ListContainersRequest) (*cri.ListContainersResponse, error) {
	return &cri.ListContainersResponse{}, nil
}

func (containerd) ListPodSandbox(context.Context, *cri.ListPodSandboxRequest) (*cri.ListPodSandboxResponse, error) {
	return &cri.ListPodSandboxResponse{}, nil
}

// serveRuntime makes a containerd of the node at root; the function ends it.
func serveRuntime(ctx context.Context, root string) (stop func(), err error) {
	socket := filepath.Join(root, "run/containerd/containerd.sock")
	if err := os.MkdirAll(filepath.Dir(socket), 0o755); err != nil {
		return nil, fmt.Errorf("making a container runtime: %w", err)
	}
	listener, err := new(net.ListenConfig).Listen(ctx, "unix", socket)
	if err != nil {
		return nil, fmt.Errorf("making a container runtime: %w", err)
	}
	server := grpc.NewServer()
	cri.RegisterRuntimeServiceServer(server, containerd{})
	go func() { _ = server.Serve(listener) }() // until stop
	return server.Stop, nil
}
