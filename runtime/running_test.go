package runtime_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/containerd/containerd/api/services/containers/v1"
	"github.com/containerd/containerd/api/services/introspection/v1"
	"github.com/containerd/containerd/api/services/namespaces/v1"
	"github.com/containerd/containerd/api/services/tasks/v1"
	"github.com/containerd/containerd/api/types/task"
	"golang.org/x/sys/unix"
	spb "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/anypb"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/gpucdi/gpucdi/internal/host"
	"github.com/gpucdi/gpucdi/runtime"
)

const (
	specOfGPU0 = `{"mounts":[{"destination":"/a","source":"/node/a"},{"destination":"/b","source":"/node/b"}],"linux":{"devices":[{"path":"/dev/nvidia0","type":"c","major":195,"minor":0},{"path":"/dev/sda","type":"b","major":195,"minor":1}],
		"resources":{"devices":[{"allow":false,"access":"rwm"},{"allow":true,"type":"c","access":"m"},{"allow":true,"type":"c","major":195,"minor":0,"access":"rwm"}]}}}`
	privilegedSpec = `{"linux":{"devices":[{"path":"/dev/nvidia0","type":"c","major":195,"minor":0}],
		"resources":{"devices":[{"allow":true,"access":"rwm"}]}}}`
)

// fakeContainerd serves containerd's API and, if it has a name, the CRI.
type fakeContainerd struct {
	fakeCRI
	records map[string][]record // by namespace
	plugins []*introspection.Plugin
}

// record is a container, with a task unless status is UNKNOWN.
type record struct {
	id     string
	labels map[string]string
	spec   string
	status task.Status
}

func (f fakeContainerd) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	server := grpc.NewServer()
	if f.name != "" {
		cri.RegisterRuntimeServiceServer(server, f)
	}
	namespaces.RegisterNamespacesServer(server, fakeNamespaces{f: f})
	containers.RegisterContainersServer(server, fakeContainers{f: f})
	tasks.RegisterTasksServer(server, fakeTasks{f: f})
	introspection.RegisterIntrospectionServer(server, fakeIntrospection{f: f})
	server.ServeHTTP(w, r)
}

func (f fakeContainerd) inNamespace(ctx context.Context) []record {
	got, _ := metadata.FromIncomingContext(ctx)
	return f.records[strings.Join(got["containerd-namespace"], ",")]
}

type fakeNamespaces struct {
	namespaces.UnimplementedNamespacesServer
	f fakeContainerd
}

func (n fakeNamespaces) List(context.Context, *namespaces.ListNamespacesRequest) (*namespaces.ListNamespacesResponse, error) {
	response := &namespaces.ListNamespacesResponse{}
	for name := range n.f.records {
		if name == "broken" {
			return nil, status.Error(codes.Internal, "database is closed")
		}
		response.Namespaces = append(response.Namespaces, &namespaces.Namespace{Name: name})
	}
	return response, nil
}

type fakeContainers struct {
	containers.UnimplementedContainersServer
	f fakeContainerd
}

func (c fakeContainers) Get(ctx context.Context, request *containers.GetContainerRequest) (*containers.GetContainerResponse, error) {
	for _, r := range c.f.inNamespace(ctx) {
		if r.id == request.GetID() && r.spec != "removed" {
			return &containers.GetContainerResponse{Container: &containers.Container{ID: r.id, Labels: r.labels, Spec: &anypb.Any{Value: []byte(r.spec)}}}, nil
		}
	}
	return nil, status.Error(codes.NotFound, "no such container")
}

type fakeTasks struct {
	tasks.UnimplementedTasksServer
	f fakeContainerd
}

func (s fakeTasks) List(ctx context.Context, _ *tasks.ListTasksRequest) (*tasks.ListTasksResponse, error) {
	response := &tasks.ListTasksResponse{}
	for _, r := range s.f.inNamespace(ctx) {
		if r.status != task.Status_UNKNOWN {
			response.Tasks = append(response.Tasks, &task.Process{ID: r.id, Pid: 7, Status: r.status})
		}
	}
	return response, nil
}

type fakeIntrospection struct {
	introspection.UnimplementedIntrospectionServer
	f fakeContainerd
}

func (i fakeIntrospection) Plugins(context.Context, *introspection.PluginsRequest) (*introspection.PluginsResponse, error) {
	return &introspection.PluginsResponse{Plugins: i.f.plugins}, nil
}

var podLabels = map[string]string{
	"io.kubernetes.pod.uid": "uid", "io.kubernetes.pod.namespace": "default", "io.kubernetes.pod.name": "pod",
	"io.kubernetes.container.name": "main",
}

func TestListRunningContainerd(t *testing.T) {
	got := describe(t, fakeContainerd{fakeCRI: fakeCRI{name: "containerd"}, records: map[string][]record{
		"k8s.io": {
			{"pod", podLabels, specOfGPU0, task.Status_RUNNING},
			{"sandbox", map[string]string{"io.kubernetes.pod.uid": "uid"}, specOfGPU0, task.Status_RUNNING},
			{"doctor", map[string]string{"io.kubernetes.pod.uid": "x", "gpucdi.dev/launched": "true"}, specOfGPU0, task.Status_RUNNING},
			{"removed meanwhile", podLabels, "removed", task.Status_RUNNING},
			{"exited", podLabels, specOfGPU0, task.Status_STOPPED},
			{"no task", podLabels, "invalid JSON, not decoded", task.Status_UNKNOWN},
		},
		"moby":    {{"paused", podLabels, privilegedSpec, task.Status_PAUSED}}, // the image sets the labels: no pod
		"default": {{"created", map[string]string{"nerdctl/name": "web"}, specOfGPU0, task.Status_CREATED}},
		"empty":   nil,
	}})
	want := []string{
		"container paused (containerd namespace moby) has GPU 0, privileged",
		"container web (containerd namespace default) has GPU 0 and [/node/a /node/b]",
		"default/pod/main has GPU 0 and [/node/a /node/b]",
	}
	if !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestListRunningCRIO(t *testing.T) {
	verbose := func(spec string) string {
		return `{"sandboxID":"s","pid":7,"runtimeSpec":` + spec + `,"privileged":false}`
	}
	container := func(id, name string) *cri.Container {
		return &cri.Container{Id: id, State: cri.ContainerState_CONTAINER_RUNNING, Labels: map[string]string{
			"io.kubernetes.pod.uid": "uid", "io.kubernetes.pod.namespace": "default", "io.kubernetes.pod.name": "pod", "io.kubernetes.container.name": name,
		}}
	}
	got := describe(t, fakeCRI{name: "cri-o",
		containers: []*cri.Container{container("a", "main"), container("b", "none"), container("removed", "removed")},
		info:       map[string]string{"a": verbose(specOfGPU0), "b": verbose(`{}`)},
	})
	if want := []string{"default/pod/main has GPU 0 and [/node/a /node/b]", "default/pod/none"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

// Docker's containerd is listed after the kubelet's runtime. It may be missing or stopped.
func TestListRunningIncludesDocker(t *testing.T) {
	node := shortDir(t)
	serve(t, node, "/run/crio/crio.sock", fakeCRI{name: "cri-o"})
	list := func() []runtime.Running {
		return runtime.ListRunning(t.Context(), host.NewRoot(node), "/var/lib/kubelet")
	}
	if all := list(); len(all) != 1 || all[0].Err != nil {
		t.Errorf("without Docker: got %v", all)
	}
	write(t, node+"/run/containerd/containerd.sock", "") // stale, without a listener
	if all := list(); len(all) != 2 || all[0].Err != nil || !errors.Is(all[1].Err, runtime.ErrStopped) {
		t.Errorf("with Docker stopped: got %v", all)
	}
	if err := os.Remove(node + "/run/containerd/containerd.sock"); err != nil {
		t.Fatal(err)
	}
	serve(t, node, "/run/containerd/containerd.sock", fakeContainerd{records: map[string][]record{"moby": {{"d", nil, specOfGPU0, task.Status_RUNNING}}}})
	if all := list(); len(all) != 2 || errors.Join(all[0].Err, all[1].Err) != nil || len(all[1].Containers) != 1 {
		t.Errorf("with Docker: got %v", all)
	}
}

// kubeadm configures the kubelet with /var/run, a symlink to /run.
func TestListRunningListsASocketOnce(t *testing.T) {
	node := shortDir(t)
	serve(t, node, "/run/containerd/containerd.sock", fakeContainerd{fakeCRI: fakeCRI{name: "containerd"}})
	write(t, node+"/var/lib/kubelet/config.yaml", "containerRuntimeEndpoint: unix:///var/run/containerd/containerd.sock\n")
	if err := os.Symlink("../run", node+"/var/run"); err != nil {
		t.Fatal(err)
	}
	if all := runtime.ListRunning(t.Context(), host.NewRoot(node), "/var/lib/kubelet"); len(all) != 1 || all[0].Err != nil {
		t.Errorf("got %v", all)
	}
}

func TestListRunningErrors(t *testing.T) {
	for want, f := range map[string]http.Handler{
		"listing namespaces":          fakeContainerd{fakeCRI: fakeCRI{name: "containerd"}, records: map[string][]record{"broken": nil}},
		"decoding the OCI spec":       fakeContainerd{fakeCRI: fakeCRI{name: "containerd"}, records: map[string][]record{"a": {{"c", nil, "{", task.Status_RUNNING}}}},
		"inspecting container c":      fakeCRI{name: "cri-o", containers: []*cri.Container{running("")}, info: map[string]string{"c": "broken"}},
		"decoding the verbose status": fakeCRI{name: "cri-o", containers: []*cri.Container{running("")}, info: map[string]string{"c": "info"}},
		`remove "cri"`:                fakeContainerd{},
	} {
		node := shortDir(t)
		serve(t, node, "/run/containerd/containerd.sock", f)
		all := runtime.ListRunning(t.Context(), host.NewRoot(node), "/var/lib/kubelet")
		if all[0].Err == nil || !strings.Contains(all[0].Err.Error(), want) || len(all[0].Containers) > 0 {
			t.Errorf("got %v, want an error with %q", all[0], want)
		}
	}
}

func TestContainerdWithoutCRI(t *testing.T) {
	plugin := func(kind, id, failure string) *introspection.Plugin {
		p := &introspection.Plugin{Type: kind, ID: id}
		if failure != "" {
			p.InitErr = &spb.Status{Message: failure}
		}
		return p
	}
	for want, plugins := range map[string][]*introspection.Plugin{
		`remove "cri"`:                         {plugin("io.containerd.grpc.v1", "tasks", "")},
		"io.containerd.grpc.v1.cri: no CNI":    {plugin("io.containerd.grpc.v1", "cri", "no CNI")},
		"io.containerd.cri.v1.runtime: no NRI": {plugin("io.containerd.cri.v1", "runtime", "no NRI"), plugin("io.containerd.grpc.v1", "cri", "")},
		"getting the runtime version":          {plugin("io.containerd.grpc.v1", "cri", "")}, // still loading
	} {
		node := shortDir(t)
		serve(t, node, "/run/containerd/containerd.sock", fakeContainerd{plugins: plugins})
		if info, err := runtime.Detect(t.Context(), host.NewRoot(node), "/var/lib/kubelet"); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, %v, want an error with %q", info, err, want)
		}
	}
}

// describe lists the running containers, and whether they have GPU 0 or are privileged. PIDs other than 7 and block
// devices are included as well; no test expects them.
func describe(t *testing.T, f http.Handler) (lines []string) {
	t.Helper()
	node := shortDir(t)
	serve(t, node, "/run/containerd/containerd.sock", f)
	all := runtime.ListRunning(t.Context(), host.NewRoot(node), "/var/lib/kubelet")
	for _, of := range all {
		if of.Err != nil && !errors.Is(of.Err, runtime.ErrStopped) {
			t.Fatal(of.Err)
		}
	}
	for _, c := range all[0].Containers {
		line := fmt.Sprint(c)
		if c.PID != 7 {
			line += fmt.Sprintf(" has PID %d", c.PID)
		}
		if c.Devices[unix.Mkdev(195, 0)] {
			line += " has GPU 0"
			if len(c.Sources) > 0 {
				line += fmt.Sprint(" and ", c.Sources)
			}
		}
		if c.Devices[unix.Mkdev(195, 1)] {
			line += " has a block device"
		}
		if c.Privileged {
			line += ", privileged"
		}
		lines = append(lines, line)
	}
	slices.Sort(lines)
	return lines
}

// shortDir returns a directory for sockets, whose paths have a maximum length. t.TempDir would include the test name.
func shortDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "node")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}
