package runtime

import (
	"context"
	"errors"
	"fmt"
	"path"
	"strings"

	"go.yaml.in/yaml/v3"
	"google.golang.org/grpc"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/gpucdi/gpucdi/internal/host"
	"github.com/gpucdi/gpucdi/internal/unixgrpc"
)

// messageLimit bounds an answer of the runtime, in bytes. It is the kubelet's own.
const messageLimit = 16 << 20

// place is where a distribution has its runtime, by the node's paths.
type place struct {
	socket  string // on which it listens for the kubelet
	config  string // the file in which its admin sets containerd up
	service string // what has to be restarted then
}

// plain is containerd as its own packages have it.
var plain = place{"/run/containerd/containerd.sock", "/etc/containerd/config.toml", "containerd"}

// places are tried from the first to the last. The plain one comes at the end:
// Docker brings a containerd there, beside any other runtime.
var places = []place{
	{"/run/k3s/containerd/containerd.sock",
		"/var/lib/rancher/k3s/agent/etc/containerd/config.toml.tmpl (or below rke2 in place of k3s)", "k3s or rke2"},
	{"/run/k0s/containerd.sock", "a file of /etc/k0s/containerd.d", "k0s"},
	{"/var/snap/microk8s/common/run/containerd.sock", "/var/snap/microk8s/current/args/containerd-template.toml", "MicroK8s"},
	{"/run/crio/crio.sock", "", ""},
	plain,
}

// placeOf returns the place with that socket, or else the plain one.
func placeOf(socket string) place {
	for _, p := range places {
		if p.socket == socket {
			return p
		}
	}
	return plain
}

// Info is what a runtime says of itself.
type Info struct {
	Name     string // "containerd", "cri-o"
	Version  string
	Socket   string // the node's path
	CDI      bool   // whether it resolves CDI devices
	SpecDirs []string

	// CgroupParent is where a pod's cgroup can be that is not the kubelet's;
	// empty: where the runtime has it by itself.
	CgroupParent string
}

// Detect asks the node's runtime over CRI. The runtime is the one that the
// kubelet's own configuration below kubeletDir names, or else the first that
// answers at a known socket. The error lists what was tried.
func Detect(ctx context.Context, node host.Root, kubeletDir string) (Info, error) {
	return firstAnswer(node, kubeletDir, func(socket string) (Info, error) { return ask(ctx, node, socket) })
}

// firstAnswer returns the answer of the node's runtime, see Detect.
func firstAnswer[T any](node host.Root, kubeletDir string, ask func(socket string) (T, error)) (T, error) {
	var candidates []string
	for _, p := range places {
		candidates = append(candidates, p.socket)
	}
	if socket := kubeletSocket(node, kubeletDir); socket != "" {
		candidates = []string{socket}
	}
	var errs []error
	for _, socket := range candidates {
		if _, err := node.Stat(socket); err != nil {
			errs = append(errs, fmt.Errorf("%s: not there", socket))
			continue
		}
		answer, err := ask(socket)
		if err == nil {
			return answer, nil
		}
		errs = append(errs, fmt.Errorf("%s: %w", socket, err))
	}
	var none T
	return none, fmt.Errorf("finding the container runtime: %w", errors.Join(errs...))
}

// kubeletSocket reads the endpoint from the kubelet's configuration file where
// kubeadm and its relatives keep it. There may be none: the kubelet also takes
// flags, and then the known sockets have to do.
func kubeletSocket(node host.Root, kubeletDir string) string {
	data, err := node.ReadFile(path.Join(kubeletDir, "config.yaml"))
	if err != nil {
		return ""
	}
	return parseEndpoint(data)
}

func parseEndpoint(data []byte) string {
	var kubelet struct {
		Endpoint string `yaml:"containerRuntimeEndpoint"`
	}
	if err := yaml.Unmarshal(data, &kubelet); err != nil {
		return ""
	}
	return strings.TrimPrefix(kubelet.Endpoint, "unix://")
}

// dial connects to the socket, which local is this process's path of.
func dial(node host.Root, socket string) (conn *grpc.ClientConn, local string, err error) {
	resolved, err := node.Resolve(socket)
	if err != nil {
		return nil, "", err
	}
	local = node.LocalPath(resolved)
	conn, err = unixgrpc.NewClient(local, grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(messageLimit)))
	return conn, local, err
}

func askVersion(ctx context.Context, client cri.RuntimeServiceClient) (*cri.VersionResponse, error) {
	version, err := client.Version(ctx, &cri.VersionRequest{})
	if err != nil {
		return nil, fmt.Errorf("asking for its version: %w", err)
	}
	return version, nil
}

func ask(ctx context.Context, node host.Root, socket string) (Info, error) {
	conn, local, err := dial(node, socket)
	if err != nil {
		return Info{}, err
	}
	defer conn.Close()

	client := cri.NewRuntimeServiceClient(conn)
	version, err := askVersion(ctx, client)
	if err != nil {
		return Info{}, err
	}
	info := Info{Name: version.RuntimeName, Version: version.RuntimeVersion, Socket: socket}
	switch info.Name {
	case "containerd":
		status, err := client.Status(ctx, &cri.StatusRequest{Verbose: true})
		if err != nil {
			return Info{}, fmt.Errorf("asking for its configuration: %w", err)
		}
		return containerd(info, status.Info["config"])
	case "cri-o":
		return crio(ctx, info, local)
	default:
		return Info{}, fmt.Errorf("serves %s, which gpucdi does not know", info.Name)
	}
}
