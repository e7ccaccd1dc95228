package runtime

import (
	"cmp"
	"context"
	"errors"
	"path"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"k8s.io/apimachinery/pkg/labels"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

var launchConfig = Launch{
	Device: "gpucdi.dev/gpu=GPU-1",
	Idle:   []string{"/usr/bin/gpucdi", "probe", "--idle"},
	Probe:  []string{"/usr/bin/gpucdi", "probe", "GPU-1"},
}

// testLaunch launches a container on a node where an earlier launch was interrupted and another one is in progress. It
// checks that the containers of this launch and of the interrupted one are removed, and that the others remain.
func testLaunch(ctx context.Context, t *testing.T, pod *fakePod, l Launch) (output, image string, err error) {
	t.Helper()
	interrupted := time.Now().Add(-launchTimeout - removeTimeout)
	pod.containers = append(pod.containers,
		&cri.Container{Id: "interrupted", Labels: map[string]string{launchedLabel: "true", launchIDLabel: "a"}, CreatedAt: interrupted.UnixNano()},
		&cri.Container{Id: "concurrent", Labels: map[string]string{launchedLabel: "true", launchIDLabel: "b"}, CreatedAt: time.Now().UnixNano()},
		&cri.Container{Id: "other", Labels: map[string]string{LabelContainerName: "main"}},
	)
	remaining := pod.ids()
	remaining = slices.DeleteFunc(remaining, func(id string) bool { return id == "interrupted" })
	out, image, err := launch(ctx, pod, "a.slice", l)
	if got := pod.ids(); !slices.Equal(got, remaining) {
		t.Errorf("containers %v remain, want %v", got, remaining)
	}
	return string(out), image, err
}

func TestLaunch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		pod := newFakePod()
		output, image, err := testLaunch(t.Context(), t, pod, launchConfig)
		if output != "output" || image != "sha256:1234" || err != nil {
			t.Errorf("got %q, image %s, %v", output, image, err)
		}
		c := pod.request.Config
		if len(c.CDIDevices) != 1 || c.CDIDevices[0].Name != launchConfig.Device || len(c.Mounts) > 0 || c.Image.Image != image {
			t.Errorf("created container %v", c)
		}
		if got := pod.request.SandboxConfig; pod.request.PodSandboxId != "sandbox" || got.Metadata.Uid != "uid" || got.Linux.CgroupParent != "a.slice" {
			t.Errorf("created in pod %s: %v", pod.request.PodSandboxId, got)
		}
		// Without a log path, the kubelet removes files of its working directory with the container.
		if got := path.Join(pod.request.SandboxConfig.LogDirectory, c.LogPath); got != "/var/log/pods/a/gpucdi/doctor.log" {
			t.Errorf("log %q", got)
		}
		// The kubelet does not end it, and NRI passes it.
		if c.Labels[podUID] != "uid" || c.Labels[LabelContainerName] != "" {
			t.Errorf("labels %v", c.Labels)
		}
		got := c.Linux.SecurityContext
		if got.Privileged || got.NamespaceOptions.Pid != cri.NamespaceMode_CONTAINER || got.NamespaceOptions.Network != cri.NamespaceMode_NODE ||
			len(got.MaskedPaths) == 0 || len(got.ReadonlyPaths) == 0 {
			t.Errorf("security context %v", got)
		}
	})
}

func TestLaunchMountsPrograms(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := launchConfig
		l.Image, l.Programs = "debian", []string{"/opt/gpucdi"}
		pod := newFakePod()
		if _, image, err := testLaunch(t.Context(), t, pod, l); image != "debian" || err != nil {
			t.Errorf("got %s, %v", image, err)
		}
		m := pod.request.Config.Mounts
		if len(m) != 1 || m[0].HostPath != "/opt/gpucdi" || m[0].ContainerPath != "/opt/gpucdi" || !m[0].Readonly {
			t.Errorf("mounts %v", m)
		}
	})
}

// The container is removed after each kind of failure.
func TestLaunchErrors(t *testing.T) {
	for _, tc := range []struct {
		name   string
		change func(p *fakePod)
		want   string
	}{
		{"no agent", func(p *fakePod) { p.containers = nil }, ErrNoAgent.Error()},
		{"a container of the same name", func(p *fakePod) { p.containers = p.containers[:1] }, ErrNoAgent.Error()},
		{"no log", func(p *fakePod) { p.log = "" }, `container agent has the log ""`},
		{"not inspected", fails("inspect", "busy"), "inspecting container unprivileged: busy"},
		{"no pod", fails("status", "not found"), "reading the agent's pod sandbox: not found"},
		{"no such device", fails("create", "unresolvable CDI devices"), "starting a container of image sha256:1234 with gpucdi.dev/gpu=GPU-1: unresolvable"},
		{"no such program", fails("start", "no such file"), "starting a container of image sha256:1234 with gpucdi.dev/gpu=GPU-1: no such file"},
		{"timeout", fails("exec", "timeout"), "running /usr/bin/gpucdi in a container of image sha256:1234: timeout"},
		{"exit code", func(p *fakePod) { p.exitCode = 127 }, "exit code 127: error output"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				pod := newFakePod()
				tc.change(pod)
				_, _, err := testLaunch(t.Context(), t, pod, launchConfig)
				if err == nil || !strings.Contains(err.Error(), tc.want) || len(err.Error()) > 2*stderrLimit {
					t.Errorf("got %v, want %q", err, tc.want)
				}
			})
		})
	}
}

// Another caller may be removing the container.
func TestLaunchRemovalRetry(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		pod := newFakePod()
		pod.removing = true
		if output, _, err := testLaunch(t.Context(), t, pod, launchConfig); output != "output" || err != nil {
			t.Errorf("got %q, %v", output, err)
		}
	})
}

func TestLaunchNotRemoved(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		pod := newFakePod()
		fails("remove", "busy")(pod)
		if _, _, err := launch(t.Context(), pod, "", launchConfig); err == nil || !strings.Contains(err.Error(), "removing launched container") {
			t.Errorf("error %v", err)
		}
	})
}

func TestLaunchCanceled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		pod := newFakePod()
		pod.onExec = cancel
		if _, _, err := testLaunch(ctx, t, pod, launchConfig); !errors.Is(err, context.Canceled) {
			t.Errorf("error %v", err)
		}
	})
}

// A runtime that hangs does not block Launch.
func TestLaunchHangs(t *testing.T) {
	for _, operation := range []string{"list", "inspect", "status", "create", "start", "exec", "stop", "remove"} {
		t.Run(operation, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				pod := newFakePod()
				pod.hangs = operation
				began := time.Now()
				_, _, err := launch(t.Context(), pod, "", launchConfig)
				if took := time.Since(began); !errors.Is(err, context.DeadlineExceeded) || took > launchTimeout+removeTimeout {
					t.Errorf("error %v after %s", err, took)
				}
			})
		})
	}
}

// With the systemd cgroup driver, containerd relies on the kubelet to set a slice as the cgroup parent.
func TestCgroupParent(t *testing.T) {
	for config, want := range map[string]string{
		`{"containerd":{"defaultRuntimeName":"runc","runtimes":{"runc":{"options":{"SystemdCgroup":true}}}}}`: "system.slice",
		`{"containerd":{"defaultRuntimeName":"runc","runtimes":{"runc":{"options":{}}}}}`:                     "",
		`{}`: "",
	} {
		if info, err := parseContainerdConfig(Info{}, config); err != nil || info.CgroupParent != want {
			t.Errorf("config %s: cgroup parent %q, want %q (%v)", config, info.CgroupParent, want, err)
		}
	}
}

// fakePod is a runtime that runs the agent's pod. Its containers ignore SIGTERM.
type fakePod struct {
	cri.RuntimeServiceClient
	errs     map[string]error // error by operation
	hangs    string           // operation that blocks until its context ends
	exitCode int32            // exit code of ExecSync
	onExec   func()           // called by ExecSync, which then blocks until its context ends
	removing bool             // the first RemoveContainer fails
	log      string           // path of the agent's log

	containers []*cri.Container
	stopped    []string                    // IDs of killed containers
	request    *cri.CreateContainerRequest // the latest one
}

func newFakePod() *fakePod {
	agent := func(id, sandbox, image string, created int64) *cri.Container {
		return &cri.Container{
			Id: id, PodSandboxId: sandbox, Image: &cri.ImageSpec{Image: image}, CreatedAt: created,
			Labels: map[string]string{LabelContainerName: "gpucdi"},
		}
	}
	return &fakePod{errs: map[string]error{}, log: "/var/log/pods/a/gpucdi/0.log", containers: []*cri.Container{
		agent("unprivileged", "other", "sha256:9", 3), agent("previous", "terminating", "sha256:8", 1), agent("agent", "sandbox", "sha256:1234", 2),
	}}
}

// fails returns a function that makes an operation fail.
func fails(operation, message string) func(p *fakePod) {
	return func(p *fakePod) { p.errs[operation] = errors.New(message) }
}

func (p *fakePod) do(ctx context.Context, operation string) error {
	if p.hangs == operation {
		<-ctx.Done()
		return ctx.Err()
	}
	return cmp.Or(ctx.Err(), p.errs[operation])
}

func (p *fakePod) ids() (ids []string) {
	for _, c := range p.containers {
		ids = append(ids, c.Id)
	}
	return ids
}

func (p *fakePod) PodSandboxStatus(ctx context.Context, r *cri.PodSandboxStatusRequest, _ ...grpc.CallOption) (*cri.PodSandboxStatusResponse, error) {
	options := &cri.NamespaceOption{Pid: cri.NamespaceMode_NODE, Network: cri.NamespaceMode_NODE} // with MPS
	return &cri.PodSandboxStatusResponse{Status: &cri.PodSandboxStatus{
		Id: r.PodSandboxId, Metadata: &cri.PodSandboxMetadata{Name: "gpucdi-x", Namespace: "gpucdi", Uid: "uid"},
		Linux: &cri.LinuxPodSandboxStatus{Namespaces: &cri.Namespace{Options: options}},
	}}, p.do(ctx, "status")
}

func (p *fakePod) ListContainers(ctx context.Context, r *cri.ListContainersRequest, _ ...grpc.CallOption) (*cri.ListContainersResponse, error) {
	found := &cri.ListContainersResponse{}
	for _, c := range p.containers {
		if labels.SelectorFromSet(r.Filter.LabelSelector).Matches(labels.Set(c.Labels)) {
			found.Containers = append(found.Containers, c)
		}
	}
	return found, p.do(ctx, "list")
}

func (p *fakePod) ContainerStatus(ctx context.Context, r *cri.ContainerStatusRequest, _ ...grpc.CallOption) (*cri.ContainerStatusResponse, error) {
	privileged := strconv.FormatBool(r.ContainerId != "unprivileged")
	return &cri.ContainerStatusResponse{
		Status: &cri.ContainerStatus{Id: r.ContainerId, LogPath: p.log},
		Info:   map[string]string{"info": `{"runtimeSpec":{"linux":{"resources":{"devices":[{"allow":` + privileged + `,"access":"rwm"}]}}}}`},
	}, p.do(ctx, "inspect")
}

func (p *fakePod) CreateContainer(ctx context.Context, r *cri.CreateContainerRequest, _ ...grpc.CallOption) (*cri.CreateContainerResponse, error) {
	p.request = r
	if err := p.do(ctx, "create"); err != nil {
		return nil, err
	}
	p.containers = append(p.containers, &cri.Container{Id: "launched", Labels: r.Config.Labels, CreatedAt: time.Now().UnixNano()})
	return &cri.CreateContainerResponse{ContainerId: "launched"}, nil
}

func (p *fakePod) StartContainer(ctx context.Context, _ *cri.StartContainerRequest, _ ...grpc.CallOption) (*cri.StartContainerResponse, error) {
	return &cri.StartContainerResponse{}, p.do(ctx, "start")
}

func (p *fakePod) StopContainer(ctx context.Context, r *cri.StopContainerRequest, _ ...grpc.CallOption) (*cri.StopContainerResponse, error) {
	if r.Timeout == 0 {
		p.stopped = append(p.stopped, r.ContainerId)
	}
	return &cri.StopContainerResponse{}, p.do(ctx, "stop")
}

func (p *fakePod) RemoveContainer(ctx context.Context, r *cri.RemoveContainerRequest, _ ...grpc.CallOption) (*cri.RemoveContainerResponse, error) {
	if !slices.Contains(p.stopped, r.ContainerId) {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	if p.removing {
		p.removing = false
		return nil, errors.New("already being removed")
	}
	if err := p.do(ctx, "remove"); err != nil {
		return nil, err
	}
	p.containers = slices.DeleteFunc(p.containers, func(c *cri.Container) bool { return c.Id == r.ContainerId })
	return &cri.RemoveContainerResponse{}, nil
}

func (p *fakePod) ExecSync(ctx context.Context, _ *cri.ExecSyncRequest, _ ...grpc.CallOption) (*cri.ExecSyncResponse, error) {
	if p.onExec != nil {
		p.onExec()
		<-ctx.Done()
		return nil, ctx.Err()
	}
	if p.exitCode != 0 {
		return &cri.ExecSyncResponse{ExitCode: p.exitCode, Stderr: []byte("error output" + strings.Repeat(" continued", 1000))}, nil
	}
	return &cri.ExecSyncResponse{Stdout: []byte("output")}, p.do(ctx, "exec")
}
