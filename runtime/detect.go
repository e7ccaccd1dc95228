package runtime

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"path"
	"strings"

	"go.yaml.in/yaml/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/gpucdi/gpucdi/internal/host"
	"github.com/gpucdi/gpucdi/internal/unixgrpc"
)

// messageLimit bounds a response of the runtime, in bytes. The kubelet uses the same limit.
const messageLimit = 16 << 20

// distribution describes the container runtime of a Kubernetes distribution. Paths are on the node.
type distribution struct {
	socket  string // CRI socket
	config  string // file for changes to the containerd config
	service string // service to restart after a change
}

// upstreamContainerd is containerd from its own packages.
var upstreamContainerd = distribution{"/run/containerd/containerd.sock", "/etc/containerd/config.toml", "containerd"}

// distributions are tried in this order. Upstream containerd is last, since Docker installs it next to any other
// runtime.
var distributions = []distribution{
	{"/run/k3s/containerd/containerd.sock",
		"/var/lib/rancher/k3s/agent/etc/containerd/config.toml.tmpl (on RKE2: rke2 instead of k3s)", "k3s or rke2"},
	{"/run/k0s/containerd.sock", "a file in /etc/k0s/containerd.d", "k0s"},
	{"/var/snap/microk8s/common/run/containerd.sock", "/var/snap/microk8s/current/args/containerd-template.toml", "MicroK8s"},
	{"/run/crio/crio.sock", "", ""},
	upstreamContainerd,
}

// distributionOf returns the distribution with a CRI socket; upstreamContainerd if none has it.
func distributionOf(socket string) distribution {
	for _, d := range distributions {
		if d.socket == socket {
			return d
		}
	}
	return upstreamContainerd
}

// Info describes a container runtime.
type Info struct {
	Name     string // "containerd", "cri-o"
	Version  string
	Socket   string   // CRI socket, as a path on the node
	CDI      bool     // whether CDI is enabled
	SpecDirs []string // directories of CDI specs

	// CgroupParent is the cgroup parent for containers that the kubelet did not create; empty for the runtime's default.
	CgroupParent string
}

// Detect returns the container runtime of the node. It is the one in the kubelet's configuration file in kubeletDir or,
// if the file names none, the first that responds at a known socket. If a runtime hangs until ctx ends, Detect tries no
// further sockets. The error lists the sockets that were tried.
func Detect(ctx context.Context, node host.Root, kubeletDir string) (Info, error) {
	return firstReachable(ctx, node, candidates(node, kubeletDir), func(socket string) (Info, error) { return inspect(ctx, node, socket) })
}

// candidates returns the sockets at which the runtime of the kubelet may be, see Detect.
func candidates(node host.Root, kubeletDir string) (sockets []string) {
	if socket := kubeletSocket(node, kubeletDir); socket != "" {
		return []string{socket}
	}
	for _, d := range distributions {
		sockets = append(sockets, d.socket)
	}
	return sockets
}

// firstReachable calls try with each socket and returns the first result without error, see Detect. A runtime that hangs
// until ctx ends is not skipped: its containers may use devices that appear free in the list of another runtime.
func firstReachable[T any](ctx context.Context, node host.Root, sockets []string, try func(socket string) (T, error)) (T, error) {
	var errs []error
	for _, socket := range sockets {
		if _, err := node.Stat(socket); err != nil {
			errs = append(errs, fmt.Errorf("%s: not found", socket))
			continue
		}
		result, err := try(socket)
		if err == nil {
			return result, nil
		}
		errs = append(errs, fmt.Errorf("%s: %w", socket, err))
		if ctx.Err() != nil {
			break
		}
	}
	var none T
	return none, fmt.Errorf("finding the container runtime: %w", errors.Join(errs...))
}

// kubeletSocket returns the CRI socket in the kubelet's configuration file, at the path that kubeadm uses. It is empty
// if the file is missing, is invalid or names none: the kubelet may be configured by flags.
func kubeletSocket(node host.Root, kubeletDir string) string {
	data, err := node.ReadFile(path.Join(kubeletDir, "config.yaml"))
	if err != nil {
		return ""
	}
	return parseEndpoint(data)
}

func parseEndpoint(data []byte) string {
	var config struct {
		Endpoint string `yaml:"containerRuntimeEndpoint"`
	}
	if err := yaml.Unmarshal(data, &config); err != nil {
		return ""
	}
	return strings.TrimPrefix(config.Endpoint, "unix://")
}

// dial returns a connection to a socket on the node, which is established on the first call. local is the path of the
// socket for this process.
func dial(node host.Root, socket string) (conn *grpc.ClientConn, local string, err error) {
	resolved, err := node.Resolve(socket)
	if err != nil {
		return nil, "", err
	}
	local = node.LocalPath(resolved)
	conn, err = unixgrpc.NewClient(local, grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(messageLimit)))
	return conn, local, err
}

func getVersion(ctx context.Context, conn *grpc.ClientConn) (*cri.VersionResponse, error) {
	version, err := cri.NewRuntimeServiceClient(conn).Version(ctx, &cri.VersionRequest{})
	if status.Code(err) == codes.Unimplemented {
		err = cmp.Or(explainNoCRI(ctx, conn), err)
	}
	if err != nil {
		return nil, fmt.Errorf("getting the runtime version: %w", err)
	}
	return version, nil
}

func inspect(ctx context.Context, node host.Root, socket string) (Info, error) {
	conn, local, err := dial(node, socket)
	if err != nil {
		return Info{}, err
	}
	defer conn.Close()

	version, err := getVersion(ctx, conn)
	if err != nil {
		return Info{}, err
	}
	info := Info{Name: version.RuntimeName, Version: version.RuntimeVersion, Socket: socket}
	switch info.Name {
	case "containerd":
		response, err := cri.NewRuntimeServiceClient(conn).Status(ctx, &cri.StatusRequest{Verbose: true})
		if err != nil {
			return Info{}, fmt.Errorf("getting the containerd config: %w", err)
		}
		return parseContainerdConfig(info, response.GetInfo()["config"])
	case "cri-o":
		return inspectCRIO(ctx, info, local)
	default:
		return Info{}, fmt.Errorf("unsupported container runtime %s", info.Name)
	}
}
