package main

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"

	"github.com/containerd/containerd/api/services/namespaces/v1"
	"google.golang.org/grpc"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// containerd is a fake containerd, which serves the CRI calls of the agent. Without a container runtime, the agent
// would retry the detection, which does not happen on a working node.
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

// noNamespaces is the namespaces service of containerd's own API. It lists none, so the agent finds no containers.
type noNamespaces struct {
	namespaces.UnimplementedNamespacesServer
}

func (noNamespaces) List(context.Context, *namespaces.ListNamespacesRequest) (*namespaces.ListNamespacesResponse, error) {
	return &namespaces.ListNamespacesResponse{}, nil
}

// serveRuntime serves the fake containerd on the node at root until stop is called.
func serveRuntime(ctx context.Context, root string) (stop func(), err error) {
	socket := filepath.Join(root, "run/containerd/containerd.sock")
	if err := os.MkdirAll(filepath.Dir(socket), 0o755); err != nil {
		return nil, fmt.Errorf("starting a container runtime: %w", err)
	}
	listener, err := new(net.ListenConfig).Listen(ctx, "unix", socket)
	if err != nil {
		return nil, fmt.Errorf("starting a container runtime: %w", err)
	}
	server := grpc.NewServer()
	cri.RegisterRuntimeServiceServer(server, containerd{})
	namespaces.RegisterNamespacesServer(server, noNamespaces{})
	go func() { _ = server.Serve(listener) }() // until stop
	return server.Stop, nil
}
