package devicemanager

import (
	"context"
	"encoding/json"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/grpc"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/gpucdi/gpucdi/test/simdriver"
)

// containerd answers what the agent asks the runtime of a node.
type containerd struct {
	cri.UnimplementedRuntimeServiceServer
	config map[string]any
}

func (*containerd) Version(context.Context, *cri.VersionRequest) (*cri.VersionResponse, error) {
	return &cri.VersionResponse{RuntimeName: "containerd", RuntimeVersion: "v1.7.35", RuntimeApiVersion: "v1"}, nil
}

func (c *containerd) Status(context.Context, *cri.StatusRequest) (*cri.StatusResponse, error) {
	config, err := json.Marshal(c.config)
	return &cri.StatusResponse{Info: map[string]string{"config": string(config)}}, err
}

// serveRuntime gives the node a containerd that reads the agent's specs, or
// would if CDI were on.
func (n *node) serveRuntime(t *testing.T, cdi bool) {
	t.Helper()
	socket := filepath.Join(n.root, "run/containerd/containerd.sock")
	if err := os.MkdirAll(filepath.Dir(socket), 0o755); err != nil {
		t.Fatal(err)
	}
	listener, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	cri.RegisterRuntimeServiceServer(server, &containerd{config: map[string]any{"enableCDI": cdi, "cdiSpecDirs": []string{n.cdiDir}}})
	go func() { _ = server.Serve(listener) }() // until Stop
	t.Cleanup(server.Stop)
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
