package e2e

import (
	"context"
	"net"
	"path/filepath"
	"slices"
	"testing"

	"google.golang.org/grpc"
	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"github.com/gpucdi/gpucdi/test/node"
)

// anotherDriver registers a DRA driver with the name of the agent's driver. It serves nothing else.
type anotherDriver struct {
	registerapi.UnimplementedRegistrationServer
}

func (anotherDriver) GetInfo(context.Context, *registerapi.InfoRequest) (*registerapi.PluginInfo, error) {
	return &registerapi.PluginInfo{Type: registerapi.DRAPlugin, Name: "gpu.nvidia.com", Endpoint: "/nowhere.sock", SupportedVersions: []string{"v1.DRAPlugin"}}, nil
}

func (anotherDriver) NotifyRegistrationStatus(context.Context, *registerapi.RegistrationStatus) (*registerapi.RegistrationStatusResponse, error) {
	return &registerapi.RegistrationStatusResponse{}, nil
}

// anotherDriverOnNode starts a DRA driver of the same name. The agent withdraws its slices until that driver has ended,
// because the kubelet would call that driver to prepare claims for the devices in them.
func anotherDriverOnNode(t *testing.T, c *cluster) {
	c.claim(t, "kept", 1)
	c.runWithClaim(t, "runs", "kept")
	c.awaitPhase(t, "runs", "Running")
	before := c.gpusOf(t, "runs")
	socket := filepath.Join(c.KubeletDir(), "plugins_registry/gpu.nvidia.com-reg.sock")
	listener, err := net.Listen("unix", c.Box.Path(socket))
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	registerapi.RegisterRegistrationServer(server, anotherDriver{})
	go func() { _ = server.Serve(listener) }()
	defer server.Stop()
	await(t, "no slice", func() (string, bool) {
		now := c.kubectl(t, "get", "resourceslices", "--field-selector", "spec.nodeName="+node.Name, "-o", "name")
		return now, now == ""
	})
	c.awaitStatus(t, "another process serves DRA driver gpu.nvidia.com at ")
	server.Stop() // removes the socket
	c.awaitSlices(t, 8)
	if now := c.gpusOf(t, "runs"); !slices.Equal(now, before) {
		t.Errorf("the pod sees %v, before %v", now, before)
	}
	c.claim(t, "next", 7)
	c.runWithClaim(t, "later", "next")
	c.awaitPhase(t, "later", "Running")
}
