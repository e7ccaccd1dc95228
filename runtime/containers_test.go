package runtime_test

import (
	"context"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/gpucdi/gpucdi/internal/host"
	"github.com/gpucdi/gpucdi/runtime"
)

const (
	gpuKind      = "gpucdi.dev/gpu"
	noField      = `{"sandboxID":"s","config":{"metadata":{"name":"main"}}}`
	fieldOfGPU1  = `{"sandboxID":"s","config":{"metadata":{"name":"main"},"CDI_devices":[{"name":"gpucdi.dev/gpu=GPU-1"}]}}`
	fieldOfClass = `{"config":{"CDI_devices":[{"name":"gpucdi.dev/gpu-class=a"},{"name":"nvidia.com/gpu=0"}]}}`
	// infoOfCRIO has the OCI spec of the container instead of its config.
	infoOfCRIO = `{"sandboxID":"s","pid":7,"runtimeSpec":{"ociVersion":"1.2.1"},"privileged":false}`
)

// running returns a running container of pod p, with the value of a CDI annotation unless it is empty.
func running(annotation string) *cri.Container {
	c := &cri.Container{Id: "c", State: cri.ContainerState_CONTAINER_RUNNING, Labels: map[string]string{"io.kubernetes.pod.uid": "p"}}
	if annotation != "" {
		c.Annotations = map[string]string{"cdi.k8s.io/gpucdi.dev_GPU-1": annotation}
	}
	return c
}

func inState(c *cri.Container, state cri.ContainerState) *cri.Container {
	c.State = state
	return c
}

func TestListContainers(t *testing.T) {
	const gpu1, gpu2 = "gpucdi.dev/gpu=GPU-1", "gpucdi.dev/gpu=GPU-2"
	podless, otherKey := running(gpu1), running("")
	podless.Labels = map[string]string{"io.kubernetes.container.name": "exporter"}
	otherKey.Annotations = map[string]string{"example.com/seen": gpu1}
	for _, tc := range []struct {
		name      string
		container *cri.Container
		info      string
		want      []string
	}{
		{"annotation", running(gpu1), noField, []string{gpu1}},
		{"several in an annotation", running(gpu2 + "," + gpu1), noField, []string{gpu1, gpu2}},
		{"field", running(""), fieldOfGPU1, []string{gpu1}},
		{"annotation and field", running(gpu1), fieldOfGPU1, []string{gpu1}},
		{"device plugin by annotation, claim by field", running(gpu2), fieldOfGPU1, []string{gpu1, gpu2}},
		{"CRI-O, annotation", running(gpu1), infoOfCRIO, []string{gpu1}},
		{"CRI-O, field", running(""), infoOfCRIO, nil},
		{"runtime without verbose status", running(gpu1), "", []string{gpu1}},
		{"created", inState(running(gpu1), cri.ContainerState_CONTAINER_CREATED), noField, []string{gpu1}},
		{"unknown state", inState(running(gpu1), cri.ContainerState_CONTAINER_UNKNOWN), noField, []string{gpu1}},
		{"exited", inState(running(gpu1), cri.ContainerState_CONTAINER_EXITED), noField, nil},
		{"without a pod", podless, fieldOfGPU1, nil},
		{"other kinds", running("gpucdi.dev/gpu-class=a,nvidia.com/gpu=GPU-1"), fieldOfClass, nil},
		{"other annotation", otherKey, noField, nil},
		{"no devices", running(""), noField, nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			f := fakeCRI{name: "any", containers: []*cri.Container{tc.container}, info: map[string]string{"c": tc.info}}
			listed, err := list(t, f)
			var want []runtime.ContainerDevice
			for _, name := range tc.want {
				want = append(want, runtime.ContainerDevice{Pod: "p", Device: name})
			}
			if err != nil || !slices.Equal(listed.Devices, want) {
				t.Errorf("got %v, %v, want %v", listed.Devices, err, want)
			}
		})
	}
}

func TestListContainersSkipsRemoved(t *testing.T) {
	removed := running("gpucdi.dev/gpu=GPU-2")
	removed.Id = "removed"
	listed, err := list(t, fakeCRI{containers: []*cri.Container{removed, running("")}, info: map[string]string{"c": fieldOfGPU1}})
	want := []runtime.ContainerDevice{{Pod: "p", Device: "gpucdi.dev/gpu=GPU-1"}}
	if err != nil || !slices.Equal(listed.Devices, want) {
		t.Errorf("got %v, %v, want %v", listed.Devices, err, want)
	}
}

func TestListContainersReadySandboxes(t *testing.T) {
	sandbox := func(pod string, state cri.PodSandboxState, created int64) *cri.PodSandbox {
		return &cri.PodSandbox{Id: "sandbox", State: state, CreatedAt: created, Labels: map[string]string{"io.kubernetes.pod.uid": pod}}
	}
	listed, err := list(t, fakeCRI{sandboxes: []*cri.PodSandbox{
		sandbox("a", cri.PodSandboxState_SANDBOX_READY, 2),
		sandbox("a", cri.PodSandboxState_SANDBOX_READY, 1),
		sandbox("a", cri.PodSandboxState_SANDBOX_READY, 3),
		sandbox("b", cri.PodSandboxState_SANDBOX_NOTREADY, 1),
		{Id: "without a pod", State: cri.PodSandboxState_SANDBOX_READY},
	}})
	if err != nil || !maps.Equal(listed.Sandboxes, map[string]time.Time{"a": time.Unix(0, 1)}) || len(listed.Devices) > 0 {
		t.Errorf("got %v, %v", listed, err)
	}
}

// The pod is that of the ready sandbox: the kubelet creates another sandbox for the same pod after a failure.
func TestPodName(t *testing.T) {
	sandbox := func(state cri.PodSandboxState, uid, name string) *cri.PodSandbox {
		return &cri.PodSandbox{Id: name, State: state, Labels: map[string]string{"io.kubernetes.pod.uid": uid}, Metadata: &cri.PodSandboxMetadata{Uid: uid, Namespace: "default", Name: name}}
	}
	f := fakeCRI{sandboxes: []*cri.PodSandbox{
		sandbox(cri.PodSandboxState_SANDBOX_NOTREADY, "a", "earlier"), sandbox(cri.PodSandboxState_SANDBOX_READY, "b", "other"),
		sandbox(cri.PodSandboxState_SANDBOX_READY, "a", "pod"),
	}}
	node := shortDir(t)
	serve(t, node, "/run/containerd/containerd.sock", f)
	if namespace, name, err := runtime.PodName(t.Context(), host.NewRoot(node), "/var/lib/kubelet", "a"); err != nil || namespace != "default" || name != "pod" {
		t.Errorf("pod %s/%s, error %v", namespace, name, err)
	}
	if _, _, err := runtime.PodName(t.Context(), host.NewRoot(node), "/var/lib/kubelet", "c"); err == nil || !strings.Contains(err.Error(), "no ready sandbox of the pod") {
		t.Errorf("error %v", err)
	}
}

// A device missing from the result would be considered free, so a partial result is an error.
func TestListContainersErrors(t *testing.T) {
	first, broken := running("gpucdi.dev/gpu=GPU-1"), running("")
	broken.Id = "broken"
	ready := &cri.PodSandbox{Id: "sandbox", State: cri.PodSandboxState_SANDBOX_READY, Labels: first.Labels}
	for _, tc := range []struct {
		name string
		fake fakeCRI
		want string
	}{
		{"container cannot be inspected", fakeCRI{
			containers: []*cri.Container{first, broken}, info: map[string]string{"c": noField, "broken": "broken"},
			sandboxes: []*cri.PodSandbox{ready},
		}, "inspecting container broken of pod p: "},
		{"invalid verbose status", fakeCRI{
			containers: []*cri.Container{running("gpucdi.dev/gpu=GPU-1")}, info: map[string]string{"c": "info"},
		}, "decoding verbose status"},
		{"sandboxes cannot be listed", fakeCRI{
			sandboxes: []*cri.PodSandbox{{Id: "broken"}},
		}, "listing pod sandboxes: "},
		{"response above the limit", fakeCRI{
			containers: []*cri.Container{running(strings.Repeat("a", 16<<20))}, info: map[string]string{"c": noField},
		}, "larger than max"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			listed, err := list(t, tc.fake)
			if err == nil || !strings.Contains(err.Error(), tc.want) || listed.Devices != nil || listed.Sandboxes != nil {
				t.Errorf("got %v, %v, want only an error with %q", listed, err, tc.want)
			}
		})
	}
}

// The list of containers may exceed gRPC's default limit of 4 MiB.
func TestListContainersLargeResponse(t *testing.T) {
	large := running("gpucdi.dev/gpu=GPU-1")
	large.Labels["example.com/large"] = strings.Repeat("a", 15<<20)
	listed, err := list(t, fakeCRI{containers: []*cri.Container{large}, info: map[string]string{"c": noField}})
	if err != nil || len(listed.Devices) != 1 {
		t.Errorf("got %v, %v", listed.Devices, err)
	}
}

// Only the runtime that Detect finds is used, even if it fails later: Docker's containerd has no containers of pods.
func TestListContainersUsesDetectedRuntime(t *testing.T) {
	node := t.TempDir()
	detected := fakeCRI{containers: []*cri.Container{running("gpucdi.dev/gpu=GPU-1")}, info: map[string]string{"c": noField}}
	write(t, filepath.Join(node, "run/k3s/containerd/containerd.sock"), "") // stale, without a listener
	serve(t, node, "/run/k0s/containerd.sock", detected)
	serve(t, node, "/run/containerd/containerd.sock", fakeCRI{})
	listed, err := runtime.ListContainers(t.Context(), host.NewRoot(node), "/var/lib/kubelet", "", gpuKind)
	if err != nil || len(listed.Devices) != 1 {
		t.Errorf("got %v, %v", listed.Devices, err)
	}

	node = t.TempDir()
	detected.info["c"] = "broken"
	serve(t, node, "/run/k0s/containerd.sock", detected)
	serve(t, node, "/run/containerd/containerd.sock", fakeCRI{})
	if listed, err := runtime.ListContainers(t.Context(), host.NewRoot(node), "/var/lib/kubelet", "", gpuKind); err == nil {
		t.Errorf("got %v, want an error", listed)
	}

	// After the runtime has responded, another one does not replace it.
	node = shortDir(t)
	const earlier, config = "/run/k0s/containerd.sock", "var/lib/kubelet/config.yaml"
	serve(t, node, "/run/containerd/containerd.sock", fakeCRI{})
	if listed, err := runtime.ListContainers(t.Context(), host.NewRoot(node), "/var/lib/kubelet", earlier, gpuKind); err == nil {
		t.Errorf("got %v, want an error", listed)
	}
	write(t, filepath.Join(node, config), "containerRuntimeEndpoint: unix:///run/containerd/containerd.sock\n")
	if listed, err := runtime.ListContainers(t.Context(), host.NewRoot(node), "/var/lib/kubelet", earlier, gpuKind); err != nil || listed.Socket != "/run/containerd/containerd.sock" {
		t.Errorf("after the kubelet uses another runtime: got %v, %v", listed, err)
	}

	_, err = runtime.ListContainers(t.Context(), host.NewRoot(t.TempDir()), "/var/lib/kubelet", "", gpuKind)
	if err == nil || !strings.Contains(err.Error(), "/run/k0s/containerd.sock: not found") {
		t.Errorf("no runtime: %v", err)
	}
}

func list(t *testing.T, f fakeCRI) (runtime.Containers, error) {
	t.Helper()
	node := shortDir(t)
	serve(t, node, "/run/containerd/containerd.sock", f)
	return runtime.ListContainers(t.Context(), host.NewRoot(node), "/var/lib/kubelet", "", gpuKind)
}

func (f fakeCRI) ListContainers(context.Context, *cri.ListContainersRequest) (*cri.ListContainersResponse, error) {
	return &cri.ListContainersResponse{Containers: f.containers}, nil
}

func (f fakeCRI) ContainerStatus(_ context.Context, r *cri.ContainerStatusRequest) (*cri.ContainerStatusResponse, error) {
	info, found := f.info[r.GetContainerId()]
	switch {
	case !found:
		return nil, status.Error(codes.NotFound, "no such container")
	case info == "broken":
		return nil, status.Error(codes.Unknown, "shim is gone")
	case info == "" || !r.GetVerbose():
		return &cri.ContainerStatusResponse{}, nil
	}
	return &cri.ContainerStatusResponse{Info: map[string]string{"info": info}}, nil
}

func (f fakeCRI) ListPodSandbox(_ context.Context, r *cri.ListPodSandboxRequest) (*cri.ListPodSandboxResponse, error) {
	response := &cri.ListPodSandboxResponse{}
	for _, s := range f.sandboxes {
		if s.GetId() == "broken" {
			return nil, status.Error(codes.Unavailable, "server is not initialized yet")
		}
		for key, value := range r.GetFilter().GetLabelSelector() {
			if s.GetLabels()[key] != value {
				s = nil
			}
		}
		if s != nil && (r.GetFilter().GetState() == nil || r.GetFilter().GetState().GetState() == s.GetState()) {
			response.Items = append(response.Items, s)
		}
	}
	return response, nil
}
