package runtime

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/gpucdi/gpucdi/internal/host"
)

// annotationPrefix is the key prefix of container annotations that request CDI devices.
const annotationPrefix = "cdi.k8s.io/"

// Containers describes the containers of pods.
type Containers struct {
	Devices   []ContainerDevice    // sorted and distinct
	Sandboxes map[string]time.Time // when the first ready sandbox of a pod was created, by UID
	Socket    string               // of the runtime, on the node
}

// ContainerDevice is a CDI device of a container in a pod.
type ContainerDevice struct {
	Pod    string // UID
	Device string // qualified name: "gpucdi.dev/gpu=GPU-…"
}

// ListContainers lists the CDI devices of a kind that containers were created with, and the ready pod sandboxes, from
// the runtime that Detect finds. It omits containers that have exited. On error the result is empty, never partial.
//
// Only containers of pods are included, since only their devices were granted by the agent: a monitoring container
// outside Kubernetes that has all GPUs must not make them unavailable to pods. The CRI does not list containers
// outside the containerd namespace k8s.io.
//
// With CRI-O, devices that were passed only in the CRI field CDIDevices are missing, since CRI-O reports only
// annotations.
//
// earlier is the Socket of an earlier result, or empty. While that runtime restarts, the containers of another one at a
// known socket do not count: they are not those of the kubelet's pods.
//
// Containers are inspected sequentially; ctx bounds the total time.
func ListContainers(ctx context.Context, node host.Root, kubeletDir, earlier, kind string) (Containers, error) {
	sockets := candidates(node, kubeletDir)
	if slices.Contains(sockets, earlier) {
		sockets = []string{earlier}
	}
	conn, err := firstReachable(ctx, node, sockets, func(socket string) (connection, error) {
		return connect(ctx, node, socket)
	})
	if err != nil {
		return Containers{}, fmt.Errorf("listing containers: %w", err)
	}
	defer conn.Close()
	listed, err := listContainers(ctx, cri.NewRuntimeServiceClient(conn), kind)
	if err != nil {
		return Containers{}, fmt.Errorf("listing containers at %s: %w", conn.socket, err)
	}
	listed.Socket = conn.socket
	return listed, nil
}

// connection is a connection to a runtime that has responded.
type connection struct {
	*grpc.ClientConn
	socket, runtime string
}

func connect(ctx context.Context, node host.Root, socket string) (connection, error) {
	conn, _, err := dial(node, socket)
	if err != nil {
		return connection{}, err
	}
	version, err := getVersion(ctx, conn)
	if err != nil {
		return connection{}, errors.Join(err, conn.Close())
	}
	return connection{conn, socket, version.GetRuntimeName()}, nil
}

func listContainers(ctx context.Context, client cri.RuntimeServiceClient, kind string) (Containers, error) {
	// List containers first: one that is created between the calls is missing, but the sandbox of its pod is ready.
	all, err := client.ListContainers(ctx, &cri.ListContainersRequest{})
	if err != nil {
		return Containers{}, err
	}
	sandboxes, err := readySandboxes(ctx, client)
	if err != nil {
		return Containers{}, err
	}
	listed := Containers{Sandboxes: sandboxes}
	for _, container := range all.GetContainers() {
		pod := container.GetLabels()[podUID]
		// A container in state unknown may be running.
		if pod == "" || container.GetState() == cri.ContainerState_CONTAINER_EXITED {
			continue
		}
		names, err := deviceNames(ctx, client, container)
		if err != nil {
			return Containers{}, fmt.Errorf("inspecting container %s of pod %s: %w", container.GetId(), pod, err)
		}
		for _, name := range names {
			if strings.HasPrefix(name, kind+"=") {
				listed.Devices = append(listed.Devices, ContainerDevice{Pod: pod, Device: name})
			}
		}
	}
	slices.SortFunc(listed.Devices, func(a, b ContainerDevice) int {
		return cmp.Or(strings.Compare(a.Pod, b.Pod), strings.Compare(a.Device, b.Device))
	})
	listed.Devices = slices.Compact(listed.Devices)
	return listed, nil
}

// readySandboxes returns when the first ready sandbox of each pod was created, by the pod's UID.
func readySandboxes(ctx context.Context, client cri.RuntimeServiceClient) (map[string]time.Time, error) {
	ready := &cri.PodSandboxStateValue{State: cri.PodSandboxState_SANDBOX_READY}
	response, err := client.ListPodSandbox(ctx, &cri.ListPodSandboxRequest{Filter: &cri.PodSandboxFilter{State: ready}})
	if err != nil {
		return nil, fmt.Errorf("listing pod sandboxes: %w", err)
	}
	pods := map[string]time.Time{}
	for _, sandbox := range response.GetItems() {
		if pod := sandbox.GetLabels()[podUID]; pod != "" {
			created := time.Unix(0, sandbox.GetCreatedAt())
			if first, several := pods[pod]; !several || created.Before(first) {
				pods[pod] = created
			}
		}
	}
	return pods, nil
}

// PodName returns the namespace and name of the pod with a UID, from its ready sandbox in a container runtime.
func PodName(ctx context.Context, node host.Root, kubeletDir, uid string) (namespace, name string, err error) {
	pod, err := firstReachable(ctx, node, candidates(node, kubeletDir), func(socket string) (*cri.PodSandboxMetadata, error) {
		conn, err := connect(ctx, node, socket)
		if err != nil {
			return nil, err
		}
		defer conn.Close()
		return findPod(ctx, cri.NewRuntimeServiceClient(conn), uid)
	})
	if err != nil {
		return "", "", fmt.Errorf("finding pod %s: %w", uid, err)
	}
	return pod.GetNamespace(), pod.GetName(), nil
}

func findPod(ctx context.Context, client cri.RuntimeServiceClient, uid string) (*cri.PodSandboxMetadata, error) {
	response, err := client.ListPodSandbox(ctx, &cri.ListPodSandboxRequest{Filter: &cri.PodSandboxFilter{
		State: &cri.PodSandboxStateValue{State: cri.PodSandboxState_SANDBOX_READY}, LabelSelector: map[string]string{podUID: uid},
	}})
	if err != nil {
		return nil, err
	}
	for _, sandbox := range response.GetItems() {
		if m := sandbox.GetMetadata(); m.GetUid() == uid {
			return m, nil
		}
	}
	return nil, errors.New("no ready sandbox of the pod")
}

// deviceNames returns the names of all CDI devices of a container, from its annotations and the field CDIDevices. Both
// may be set, by a device plugin and by a claim. It returns none if the container was removed after it was listed.
func deviceNames(ctx context.Context, client cri.RuntimeServiceClient, container *cri.Container) ([]string, error) {
	request := &cri.ContainerStatusRequest{ContainerId: container.GetId(), Verbose: true}
	response, err := client.ContainerStatus(ctx, request)
	if status.Code(err) == codes.NotFound {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	names, err := fieldNames(response.GetInfo()["info"])
	for key, value := range container.GetAnnotations() {
		if strings.HasPrefix(key, annotationPrefix) {
			names = append(names, strings.Split(value, ",")...)
		}
	}
	return names, err
}

// fieldNames returns the names in the field CDIDevices, from the verbose status of a container. containerd includes the
// config that the container was created from.
func fieldNames(info string) (names []string, err error) {
	if info == "" {
		return nil, nil
	}
	var verbose struct {
		Config struct {
			CDIDevices []cri.CDIDevice `json:"CDI_devices"`
		} `json:"config"`
	}
	if err := json.Unmarshal([]byte(info), &verbose); err != nil {
		return nil, fmt.Errorf("decoding verbose status: %w", err)
	}
	for i := range verbose.Config.CDIDevices {
		names = append(names, verbose.Config.CDIDevices[i].Name)
	}
	return names, nil
}
