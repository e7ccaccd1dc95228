package runtime

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	oci "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/gpucdi/gpucdi/internal/host"
)

// Labels that the kubelet sets on the containers of pods.
const (
	podUID       = "io.kubernetes.pod.uid"
	podName      = "io.kubernetes.pod.name"
	podNamespace = "io.kubernetes.pod.namespace"
	// LabelContainerName is missing on pod sandboxes and on the containers of Launch.
	LabelContainerName = "io.kubernetes.container.name"
)

// criNamespace is the containerd namespace of pods.
const criNamespace = "k8s.io"

// Container is a container with the devices in its OCI spec. Devices that a hook injects, as in the legacy mode of the
// NVIDIA Container Toolkit, are not in the spec.
type Container struct {
	Namespace string // containerd namespace, such as "k8s.io" or "moby"; empty with CRI-O and in NRI calls
	ID        string
	Name      string // in the pod, or in nerdctl; empty for other containers outside Kubernetes
	Pod       Pod    // zero outside Kubernetes
	PID       int    // of its first process, in the runtime's PID namespace; 0 if unknown

	Devices    map[uint64]bool // device numbers of character devices, see unix.Mkdev
	Privileged bool            // a device cgroup rule allows all devices
	Sources    []string        // host paths of its mounts; nil without Devices and in NRI calls
}

// Pod identifies a pod.
type Pod struct {
	UID       string
	Namespace string
	Name      string
}

// String returns namespace/pod/container for a container of a pod, and otherwise the name or short ID that nerdctl and
// docker list.
func (c Container) String() string {
	if c.Pod.UID != "" {
		return c.Pod.Namespace + "/" + c.Pod.Name + "/" + c.Name
	}
	name := c.ID[:min(len(c.ID), shortID)]
	if c.Name != "" {
		name = c.Name
	}
	if c.Namespace == "" {
		return "container " + name
	}
	return fmt.Sprintf("container %s (containerd namespace %s)", name, c.Namespace)
}

// shortID is the length of the IDs that docker and nerdctl print.
const shortID = 12

// listTimeout bounds the list of one runtime, so that a runtime that hangs does not affect the list of the other.
const listTimeout = 5 * time.Second

// Running are the running containers of one runtime.
type Running struct {
	Socket     string // of the runtime, a path on the node
	Containers []Container
	Err        error // reason why Containers could not be listed; there is no partial list
}

// ListRunning lists the running containers of the runtime that Detect finds, in all containerd namespaces, and of an
// upstream containerd next to it, which Docker installs. The first Running is that of the kubelet's runtime.
func ListRunning(ctx context.Context, node host.Root, kubeletDir string) []Running {
	kubeletRuntime := listKubeletRuntime(ctx, node, kubeletDir)
	if _, err := node.Stat(upstreamContainerd.socket); err != nil || sameSocket(node, kubeletRuntime.Socket, upstreamContainerd.socket) {
		return []Running{kubeletRuntime}
	}
	return []Running{kubeletRuntime, listUpstream(ctx, node)}
}

// sameSocket compares paths on the node, which may contain symlinks such as /var/run.
func sameSocket(node host.Root, a, b string) bool {
	resolvedA, errA := node.Resolve(a)
	resolvedB, errB := node.Resolve(b)
	return errA == nil && errB == nil && resolvedA == resolvedB
}

// listKubeletRuntime lists the containers of the runtime that Detect finds.
func listKubeletRuntime(ctx context.Context, node host.Root, kubeletDir string) Running {
	ctx, cancel := context.WithTimeout(ctx, listTimeout)
	defer cancel()
	conn, err := firstReachable(ctx, node, candidates(node, kubeletDir), func(socket string) (connection, error) {
		return connect(ctx, node, socket)
	})
	if err != nil {
		return Running{Err: fmt.Errorf("listing running containers: %w", err)}
	}
	defer conn.Close()
	list := listCRI
	if conn.runtime == "containerd" {
		list = listContainerd
	}
	return newRunning(ctx, conn.socket, conn.ClientConn, list)
}

// listUpstream lists the containers of an upstream containerd that does not serve the kubelet.
func listUpstream(ctx context.Context, node host.Root) Running {
	ctx, cancel := context.WithTimeout(ctx, listTimeout)
	defer cancel()
	conn, _, err := dial(node, upstreamContainerd.socket)
	if err != nil {
		return Running{Socket: upstreamContainerd.socket, Err: fmt.Errorf("listing running containers at %s: %w", upstreamContainerd.socket, err)}
	}
	defer conn.Close()
	running := newRunning(ctx, upstreamContainerd.socket, conn, listContainerd)
	if status.Code(running.Err) == codes.Unavailable {
		running.Err = fmt.Errorf("%w: %w", ErrStopped, running.Err)
	}
	return running
}

// ErrStopped is the error of an upstream containerd that does not serve the kubelet and does not listen. Its containers
// may still run.
var ErrStopped = errors.New("container runtime is not running")

func newRunning(ctx context.Context, socket string, conn *grpc.ClientConn, list func(context.Context, *grpc.ClientConn) ([]Container, error)) Running {
	containers, err := list(ctx, conn)
	if err != nil {
		return Running{Socket: socket, Err: fmt.Errorf("listing running containers at %s: %w", socket, err)}
	}
	return Running{Socket: socket, Containers: containers}
}

// listCRI lists the running containers of a runtime that includes OCI specs in the verbose status, such as CRI-O. Such
// a runtime manages only containers of pods.
func listCRI(ctx context.Context, conn *grpc.ClientConn) ([]Container, error) {
	client := cri.NewRuntimeServiceClient(conn)
	state := &cri.ContainerStateValue{State: cri.ContainerState_CONTAINER_RUNNING}
	response, err := client.ListContainers(ctx, &cri.ListContainersRequest{Filter: &cri.ContainerFilter{State: state}})
	if err != nil {
		return nil, err
	}
	var running []Container
	for _, c := range response.GetContainers() {
		_, info, err := verboseStatus(ctx, client, c.GetId())
		if status.Code(err) == codes.NotFound {
			continue
		}
		if err != nil {
			return nil, err
		}
		running, err = appendContainer(running, Container{ID: c.GetId(), PID: info.PID}, c.GetLabels(), info.Spec)
		if err != nil {
			return nil, err
		}
	}
	return running, nil
}

// verboseInfo is the part of the verbose status of a container that CRI does not define. containerd and CRI-O have it.
type verboseInfo struct {
	PID  int             `json:"pid"`
	Spec json.RawMessage `json:"runtimeSpec"`
}

// verboseStatus returns the verbose status of a container. The code of the error is that of the call.
func verboseStatus(ctx context.Context, client cri.RuntimeServiceClient, id string) (*cri.ContainerStatus, verboseInfo, error) {
	response, err := client.ContainerStatus(ctx, &cri.ContainerStatusRequest{ContainerId: id, Verbose: true})
	if err != nil {
		return nil, verboseInfo{}, fmt.Errorf("inspecting container %s: %w", id, err)
	}
	var info verboseInfo
	if err := json.Unmarshal([]byte(response.GetInfo()["info"]), &info); err != nil {
		return nil, verboseInfo{}, fmt.Errorf("decoding the verbose status of container %s: %w", id, err)
	}
	return response.GetStatus(), info, nil
}

// appendContainer completes a container from its labels and OCI spec, and appends it. It skips pod sandboxes and the
// containers of Launch, which have a pod UID but no name label.
func appendContainer(running []Container, c Container, labels map[string]string, spec []byte) ([]Container, error) {
	c.Name = labels["nerdctl/name"]
	if c.Namespace == "" || c.Namespace == criNamespace { // in other namespaces, an image can set these labels
		c.Pod = Pod{UID: labels[podUID], Namespace: labels[podNamespace], Name: labels[podName]}
	}
	if c.Pod.UID != "" {
		c.Name = labels[LabelContainerName]
		if c.Name == "" {
			return running, nil
		}
	}
	if err := c.readSpec(spec); err != nil {
		return nil, fmt.Errorf("decoding the OCI spec of container %s: %w", c.ID, err)
	}
	return append(running, c), nil
}

func (c *Container) readSpec(data []byte) error {
	var spec struct {
		Mounts []oci.Mount `json:"mounts"`
		Linux  struct {
			Devices   []oci.LinuxDevice `json:"devices"`
			Resources struct {
				Devices []oci.LinuxDeviceCgroup `json:"devices"`
			} `json:"resources"`
		} `json:"linux"`
	}
	if err := json.Unmarshal(data, &spec); err != nil {
		return err
	}
	c.SetDevices(spec.Linux.Devices, spec.Linux.Resources.Devices)
	if len(c.Devices) > 0 {
		for _, m := range spec.Mounts {
			c.Sources = append(c.Sources, m.Source)
		}
	}
	return nil
}

// SetDevices sets Devices and Privileged from the devices and the device cgroup rules of an OCI spec.
func (c *Container) SetDevices(devices []oci.LinuxDevice, rules []oci.LinuxDeviceCgroup) {
	c.Devices = map[uint64]bool{}
	for _, d := range devices {
		if d.Type == "c" || d.Type == "u" {
			c.Devices[unix.Mkdev(uint32(d.Major), uint32(d.Minor))] = true
		}
	}
	c.Privileged = slices.ContainsFunc(rules, allowsAll)
}

// allowsAll reports whether a device cgroup rule allows all devices.
func allowsAll(r oci.LinuxDeviceCgroup) bool {
	every := func(number *int64) bool { return number == nil || *number < 0 }
	return r.Allow && (r.Type == "" || r.Type == "a") && every(r.Major) && every(r.Minor)
}
