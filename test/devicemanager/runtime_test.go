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

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	v1 "k8s.io/api/core/v1"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/gpucdi/gpucdi/test/simdriver"
)

// containerd answers what the agent asks the runtime of a node.
type containerd struct {
	cri.UnimplementedRuntimeServiceServer
	config map[string]any
	stop   func() // its socket is gone then

	mu   sync.Mutex
	pods map[string]*cri.ContainerConfig // by UID: each has a ready sandbox and a running container
}

func (*containerd) Version(context.Context, *cri.VersionRequest) (*cri.VersionResponse, error) {
	return &cri.VersionResponse{RuntimeName: "containerd", RuntimeVersion: "v1.7.35", RuntimeApiVersion: "v1"}, nil
}

func (c *containerd) Status(context.Context, *cri.StatusRequest) (*cri.StatusResponse, error) {
	config, err := json.Marshal(c.config)
	return &cri.StatusResponse{Info: map[string]string{"config": string(config)}}, err
}

func (c *containerd) ListContainers(context.Context, *cri.ListContainersRequest) (*cri.ListContainersResponse, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	answer := &cri.ListContainersResponse{}
	for uid, config := range c.pods {
		answer.Containers = append(answer.Containers, &cri.Container{
			Id: uid, PodSandboxId: uid, State: cri.ContainerState_CONTAINER_RUNNING, Labels: config.Labels,
		})
	}
	return answer, nil
}

func (c *containerd) ListPodSandbox(context.Context, *cri.ListPodSandboxRequest) (*cri.ListPodSandboxResponse, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	answer := &cri.ListPodSandboxResponse{}
	for uid, config := range c.pods {
		answer.Items = append(answer.Items, &cri.PodSandbox{Id: uid, State: cri.PodSandboxState_SANDBOX_READY, Labels: config.Labels})
	}
	return answer, nil
}

func (c *containerd) ContainerStatus(_ context.Context, r *cri.ContainerStatusRequest) (*cri.ContainerStatusResponse, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	config, found := c.pods[r.ContainerId]
	if !found {
		return nil, status.Errorf(codes.NotFound, "no container %s", r.ContainerId)
	}
	info, err := json.Marshal(map[string]any{"config": config})
	return &cri.ContainerStatusResponse{Info: map[string]string{"info": string(info)}}, err
}

// run starts a pod's container with CDI devices, passed by the CDI field.
func (c *containerd) run(pod *v1.Pod, names ...string) {
	config := &cri.ContainerConfig{Labels: map[string]string{"io.kubernetes.pod.uid": string(pod.UID)}}
	for _, name := range names {
		config.CDIDevices = append(config.CDIDevices, &cri.CDIDevice{Name: name})
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.pods[string(pod.UID)] = config
}

// end removes a pod's container and its sandbox.
func (c *containerd) end(pod *v1.Pod) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.pods, string(pod.UID))
}

// serveRuntime gives the node a containerd without pods, in place of the one that it has. It
// reads the agent's specs, or would if CDI were on.
func (n *node) serveRuntime(t *testing.T, cdi bool) {
	t.Helper()
	if n.runtime != nil {
		n.runtime.stop()
	}
	socket := filepath.Join(n.root, "run/containerd/containerd.sock")
	if err := os.MkdirAll(filepath.Dir(socket), 0o755); err != nil {
		t.Fatal(err)
	}
	listener, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	server, ended := grpc.NewServer(), make(chan struct{})
	n.runtime = &containerd{
		config: map[string]any{"enableCDI": cdi, "cdiSpecDirs": []string{n.cdiDir}},
		stop:   func() { server.Stop(); <-ended },
		pods:   map[string]*cri.ContainerConfig{},
	}
	cri.RegisterRuntimeServiceServer(server, n.runtime)
	go func() {
		defer close(ended)
		_ = server.Serve(listener) // until stop
	}()
	t.Cleanup(n.runtime.stop)
}

func TestWithoutRuntime(t *testing.T) {
	t.Parallel() // it mostly waits
	n := newNode(t, simdriver.H100x8())
	n.runtime.stop()
	k := startKubelet(t, n.kubeletDir, 2)
	n.startAgent(t)
	k.counts(t, 8, 8)
	n.awaitStatus(t, func(s nodeStatus) bool { return strings.Contains(s.Runtime.Trouble, "containerd.sock: not there") })
}

// A runtime whose CDI is off starts pods without their GPUs, so people must see
// it.
func TestRuntimeWithoutCDI(t *testing.T) {
	n := newNode(t, simdriver.H100x8())
	n.serveRuntime(t, false)
	startKubelet(t, n.kubeletDir, 2)
	n.startAgent(t)
	const says = "set enable_cdi = true"
	n.awaitStatus(t, func(s nodeStatus) bool {
		return s.Runtime.Name == "containerd" && strings.Contains(s.Runtime.Trouble, says)
	})
	n.awaitMetric(t, `gpucdi_link_healthy{link="runtime"} 0`)
	if found, fails := n.doctor(t); !fails || !strings.HasPrefix(found["runtime"], "fail") || !strings.Contains(found["runtime"], says) {
		t.Errorf("the doctor says %s", found["runtime"])
	}
}
