package runtime

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/gpucdi/gpucdi/internal/host"
)

// annotationPrefix begins the keys of container annotations that request CDI devices.
const annotationPrefix = "cdi.k8s.io/"

// Containers is what the runtime reported about the containers of pods.
type Containers struct {
	Devices   []ContainerDevice // sorted, each once
	Sandboxes map[string]bool   // UIDs of pods with a ready sandbox
}

// ContainerDevice is a CDI device that a container of a pod was given.
type ContainerDevice struct {
	Pod    string // UID
	Device string // qualified name: "gpucdi.dev/gpu=GPU-…"
}

// ListContainers asks the runtime, found as Detect finds it, for the devices of a CDI
// kind that containers were given. A container counts until it has exited, whether it was
// started or not. An error means that nothing is known: there is no partial answer.
//
// Only containers of pods count, since only they got their devices by a grant of the
// agent: a monitoring container outside Kubernetes that sees all GPUs must not keep them
// from pods. CRI does not list containers of other namespaces at all.
//
// A device passed by the CDI field alone is missing if the runtime is CRI-O, which reports
// annotations only.
//
// Containers are inspected one after the other; ctx limits the time for all of them.
func ListContainers(ctx context.Context, node host.Root, kubeletDir, kind string) (Containers, error) {
	var socket string
	conn, err := firstAnswer(node, kubeletDir, func(candidate string) (*grpc.ClientConn, error) {
		socket = candidate
		return connect(ctx, node, candidate)
	})
	if err != nil {
		return Containers{}, fmt.Errorf("listing containers: %w", err)
	}
	defer conn.Close()
	listed, err := listContainers(ctx, cri.NewRuntimeServiceClient(conn), kind)
	if err != nil {
		return Containers{}, fmt.Errorf("listing containers of the runtime at %s: %w", socket, err)
	}
	return listed, nil
}

// connect returns a connection to the runtime that answers at the socket.
func connect(ctx context.Context, node host.Root, socket string) (*grpc.ClientConn, error) {
	conn, _, err := dial(node, socket)
	if err != nil {
		return nil, err
	}
	if _, err := askVersion(ctx, cri.NewRuntimeServiceClient(conn)); err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	return conn, nil
}

func listContainers(ctx context.Context, client cri.RuntimeServiceClient, kind string) (Containers, error) {
	// Before the sandboxes: a container that is created meanwhile has one that is ready.
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
		// The state unknown may be running.
		if pod == "" || container.GetState() == cri.ContainerState_CONTAINER_EXITED {
			continue
		}
		names, err := deviceNames(ctx, client, container)
		if err != nil {
			return Containers{}, fmt.Errorf("inspecting the container %s of pod %s: %w", container.GetId(), pod, err)
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

// readySandboxes returns the UIDs of the pods that have a ready sandbox.
func readySandboxes(ctx context.Context, client cri.RuntimeServiceClient) (map[string]bool, error) {
	ready := &cri.PodSandboxStateValue{State: cri.PodSandboxState_SANDBOX_READY}
	answer, err := client.ListPodSandbox(ctx, &cri.ListPodSandboxRequest{Filter: &cri.PodSandboxFilter{State: ready}})
	if err != nil {
		return nil, fmt.Errorf("listing pod sandboxes: %w", err)
	}
	pods := map[string]bool{}
	for _, sandbox := range answer.GetItems() {
		if pod := sandbox.GetLabels()[podUID]; pod != "" {
			pods[pod] = true
		}
	}
	return pods, nil
}

// deviceNames returns the names of all CDI devices that a container was given: those of its
// annotations, and those of the CDI field. A container may have both, of a device plugin and
// of a claim. One that was removed since it was listed has none.
func deviceNames(ctx context.Context, client cri.RuntimeServiceClient, container *cri.Container) ([]string, error) {
	answer, err := client.ContainerStatus(ctx, &cri.ContainerStatusRequest{ContainerId: container.GetId(), Verbose: true})
	if status.Code(err) == codes.NotFound {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	names, err := fieldNames(answer.GetInfo()["info"])
	for key, value := range container.GetAnnotations() {
		if strings.HasPrefix(key, annotationPrefix) {
			names = append(names, strings.Split(value, ",")...)
		}
	}
	return names, err
}

// fieldNames returns the names of the CDI field from a container's verbose status. That of
// containerd contains the config that the container was created from.
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
		return nil, fmt.Errorf("decoding its verbose status: %w", err)
	}
	for i := range verbose.Config.CDIDevices {
		names = append(names, verbose.Config.CDIDevices[i].Name)
	}
	return names, nil
}
