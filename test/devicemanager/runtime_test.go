package devicemanager

import (
	"context"
	"encoding/json"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/containerd/containerd/api/services/namespaces/v1"
	oci "github.com/opencontainers/runtime-spec/specs-go"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	v1 "k8s.io/api/core/v1"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/gpucdi/gpucdi/test/simdriver"
)

// fakeContainerd serves the parts of CRI that the agent uses.
type fakeContainerd struct {
	cri.UnimplementedRuntimeServiceServer
	config map[string]any
	stop   func() // also removes the socket

	mu    sync.Mutex
	name  string                          // of the runtime
	pods  map[string]*cri.ContainerConfig // by ID; each has a ready sandbox and a running container with that ID
	specs map[string]*oci.Spec            // of containers, by ID
}

func (c *fakeContainerd) Version(context.Context, *cri.VersionRequest) (*cri.VersionResponse, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return &cri.VersionResponse{RuntimeName: c.name, RuntimeVersion: "v1.7.35", RuntimeApiVersion: "v1"}, nil
}

func (c *fakeContainerd) Status(context.Context, *cri.StatusRequest) (*cri.StatusResponse, error) {
	config, err := json.Marshal(c.config)
	return &cri.StatusResponse{Info: map[string]string{"config": string(config)}}, err
}

func (c *fakeContainerd) ListContainers(context.Context, *cri.ListContainersRequest) (*cri.ListContainersResponse, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	response := &cri.ListContainersResponse{}
	for id, config := range c.pods {
		response.Containers = append(response.Containers, &cri.Container{
			Id: id, PodSandboxId: id, State: cri.ContainerState_CONTAINER_RUNNING, Labels: config.Labels,
		})
	}
	return response, nil
}

func (c *fakeContainerd) ListPodSandbox(context.Context, *cri.ListPodSandboxRequest) (*cri.ListPodSandboxResponse, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	response := &cri.ListPodSandboxResponse{}
	for id, config := range c.pods {
		response.Items = append(response.Items, &cri.PodSandbox{Id: id, State: cri.PodSandboxState_SANDBOX_READY, Labels: config.Labels})
	}
	return response, nil
}

func (c *fakeContainerd) ContainerStatus(_ context.Context, r *cri.ContainerStatusRequest) (*cri.ContainerStatusResponse, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	config, found := c.pods[r.ContainerId]
	if !found {
		return nil, status.Errorf(codes.NotFound, "no container %s", r.ContainerId)
	}
	info, err := json.Marshal(map[string]any{"config": config, "runtimeSpec": c.specs[r.ContainerId]})
	return &cri.ContainerStatusResponse{Info: map[string]string{"info": string(info)}}, err
}

// noNamespaces is containerd's own API without containers. test/e2e covers that API with containers.
type noNamespaces struct {
	namespaces.UnimplementedNamespacesServer
}

func (noNamespaces) List(context.Context, *namespaces.ListNamespacesRequest) (*namespaces.ListNamespacesResponse, error) {
	return &namespaces.ListNamespacesResponse{}, nil
}

// startContainer adds a running container with CDI devices in the CDI field. Its ID is the pod's UID.
func (c *fakeContainerd) startContainer(pod *v1.Pod, names ...string) {
	config := &cri.ContainerConfig{Labels: map[string]string{"io.kubernetes.pod.uid": string(pod.UID)}}
	for _, name := range names {
		config.CDIDevices = append(config.CDIDevices, &cri.CDIDevice{Name: name})
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.pods[string(pod.UID)] = config
}

// removePod removes a pod's container and its sandbox.
func (c *fakeContainerd) removePod(pod *v1.Pod) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.pods, string(pod.UID))
}

// serveRuntime starts a fake containerd without pods on the node, and stops the previous one. Its CDI spec directory is
// the agent's.
func (n *node) serveRuntime(t *testing.T, enableCDI bool) {
	t.Helper()
	if n.runtime != nil {
		n.runtime.stop()
	}
	n.runtime = n.serveRuntimeAt(t, containerdSocket, enableCDI)
}

// containerdSocket and crioSocket are paths on the node.
const (
	containerdSocket = "run/containerd/containerd.sock"
	crioSocket       = "run/crio/crio.sock"
)

// serveRuntimeAt starts a fake containerd without pods at a socket.
func (n *node) serveRuntimeAt(t *testing.T, socket string, enableCDI bool) *fakeContainerd {
	t.Helper()
	socket = filepath.Join(n.root, socket)
	if err := os.MkdirAll(filepath.Dir(socket), 0o755); err != nil {
		t.Fatal(err)
	}
	listener, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	server, ended := grpc.NewServer(), make(chan struct{})
	c := &fakeContainerd{
		config: map[string]any{"enableCDI": enableCDI, "cdiSpecDirs": []string{n.cdiDir}},
		stop:   func() { server.Stop(); <-ended },
		name:   "containerd",
		pods:   map[string]*cri.ContainerConfig{},
		specs:  map[string]*oci.Spec{},
	}
	cri.RegisterRuntimeServiceServer(server, c)
	namespaces.RegisterNamespacesServer(server, noNamespaces{})
	go func() {
		defer close(ended)
		_ = server.Serve(listener) // until stop
	}()
	t.Cleanup(c.stop)
	return c
}

func TestRuntimeUnavailable(t *testing.T) {
	t.Parallel()
	n := newNode(t, simdriver.H100x8())
	n.runtime.stop()
	k := startKubelet(t, n.kubeletDir, 2)
	n.startAgent(t)
	k.awaitGPUs(t, 8, 8)
	n.awaitStatus(t, func(s nodeStatus) bool { return strings.Contains(s.Runtime.Error, "containerd.sock: not found") })
}

// With CDI disabled in the runtime, containers start without their GPUs, so status, metrics and doctor must report it.
func TestRuntimeWithoutCDI(t *testing.T) {
	t.Parallel()
	n := newNode(t, simdriver.H100x8())
	n.serveRuntime(t, false)
	startKubelet(t, n.kubeletDir, 2)
	n.startAgent(t)
	const remedy = "set enable_cdi = true"
	n.awaitStatus(t, func(s nodeStatus) bool {
		return s.Runtime.Name == "containerd" && strings.Contains(s.Runtime.Error, remedy)
	})
	n.awaitMetric(t, `gpucdi_component_healthy{component="runtime"} 0`)
	if found, failed := n.doctor(t); !failed || !strings.HasPrefix(found["runtime"], "fail") || !strings.Contains(found["runtime"], remedy) {
		t.Errorf("got runtime finding %s", found["runtime"])
	}
}
