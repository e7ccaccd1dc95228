package runtime

import (
	"context"
	"errors"
	"maps"
	"slices"
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

// testLaunch launches a container with a runtime that has other pods. It checks that the pods of this launch and of an
// earlier one are removed, and that the others remain.
func testLaunch(ctx context.Context, t *testing.T, pods *fakePods, l Launch) (output, image string, err error) {
	t.Helper()
	concurrent := map[string]string{launchedLabel: "true", launchIDLabel: "concurrent"}
	pods.sandboxes = map[string]*cri.PodSandbox{
		"other":      {Id: "other"},
		"concurrent": {Id: "concurrent", Labels: concurrent, CreatedAt: time.Now().UnixNano()},
	}
	pods.running = []string{"concurrent"}
	if pods.leftover != "" {
		created := time.Now().Add(-launchTimeout - removeTimeout)
		pods.sandboxes[pods.leftover] = &cri.PodSandbox{Id: pods.leftover, Labels: launchLabels, CreatedAt: created.UnixNano()}
	}
	out, image, err := launch(ctx, pods, "a.slice", l)
	left := slices.Sorted(maps.Keys(pods.sandboxes))
	if !slices.Equal(left, []string{"concurrent", "other"}) || !slices.Equal(pods.running, []string{"concurrent"}) {
		t.Errorf("remaining pods %v with containers of %v, want only the unrelated and concurrent ones", left, pods.running)
	}
	return string(out), image, err
}

func TestLaunch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		pods := &fakePods{agent: "sha256:1234", leftover: "interrupted"}
		output, image, err := testLaunch(t.Context(), t, pods, launchConfig)
		if output != "output" || image != "sha256:1234" || err != nil {
			t.Errorf("got %q, image %s, %v", output, image, err)
		}
		c := pods.created[0]
		if len(c.CDIDevices) != 1 || c.CDIDevices[0].Name != launchConfig.Device || len(c.Mounts) > 0 ||
			c.Image.Image != image {
			t.Errorf("created container %v", c)
		}
		if c.Labels["io.kubernetes.pod.uid"] != pods.config.Metadata.Uid || pods.config.Linux.CgroupParent != "a.slice" {
			t.Errorf("created container %v in pod %v", c, pods.config)
		}
	})
}

func TestLaunchMountsPrograms(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := launchConfig
		l.Image, l.Programs = "debian", []string{"/opt/gpucdi"}
		pods := &fakePods{}
		if _, image, err := testLaunch(t.Context(), t, pods, l); image != "debian" || err != nil {
			t.Errorf("got %s, %v", image, err)
		}
		m := pods.created[0].Mounts
		if len(m) != 1 || m[0].HostPath != "/opt/gpucdi" || m[0].ContainerPath != "/opt/gpucdi" || !m[0].Readonly {
			t.Errorf("mounts %v", m)
		}
	})
}

// failing returns a runtime that runs an agent and always fails an operation.
func failing(operation, message string) *fakePods {
	return &fakePods{agent: "a", errs: map[string]error{operation: errors.New(message)}}
}

// The pod is removed after each kind of failure.
func TestLaunchErrors(t *testing.T) {
	for _, tc := range []struct {
		name string
		pods *fakePods
		want string
	}{
		{"no agent", &fakePods{}, ErrNoImage.Error()},
		{"pod not created", failing("run", "no sandbox image"), "creating a pod: no sandbox image"},
		{"no such device", failing("create", "unresolvable CDI devices"), "unresolvable"},
		{"no such program", failing("start", "no such file"), "starting a container of image a with gpucdi.dev/gpu=GPU-1"},
		{"timeout", failing("exec", "timeout"), "running /usr/bin/gpucdi"},
		{"exit code", &fakePods{agent: "a", exitCode: 127}, "exit code 127: error output"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				_, _, err := testLaunch(t.Context(), t, tc.pods, launchConfig)
				if err == nil || !strings.Contains(err.Error(), tc.want) || len(err.Error()) > 2*stderrLimit {
					t.Errorf("got %v, want %q", err, tc.want)
				}
			})
		})
	}
}

func TestLaunchCanceled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		pods := &fakePods{agent: "a", onExec: cancel}
		_, _, err := testLaunch(ctx, t, pods, launchConfig)
		if !errors.Is(err, context.Canceled) || len(pods.created) != 1 {
			t.Errorf("error %v after %d attempts, want 1", err, len(pods.created))
		}
	})
}

// A runtime that hangs does not block Launch.
func TestLaunchHangs(t *testing.T) {
	for _, operation := range []string{"list pods", "list containers", "run", "create", "exec"} {
		t.Run(operation, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				pods := &fakePods{agent: "a", hangs: operation}
				if _, _, err := testLaunch(t.Context(), t, pods, launchConfig); !errors.Is(err, context.DeadlineExceeded) {
					t.Errorf("error %v", err)
				}
			})
		})
	}
}

// A kubelet stops the pod of the first attempt, since it does not manage it. The second attempt starts right after that,
// so it has enough time until the kubelet's next check.
func TestLaunchRetry(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		time.Sleep(time.Until(time.Now().Truncate(kubeletInterval).Add(kubeletInterval * 3 / 2)))
		pods := &fakePods{agent: "a", kubelet: true, startDelay: kubeletInterval * 9 / 10}
		output, _, err := testLaunch(t.Context(), t, pods, launchConfig)
		if output != "output" || err != nil || len(pods.created) != 2 {
			t.Errorf("got %q, %v after %d attempts, want success after 2", output, err, len(pods.created))
		}
	})
}

func TestLaunchTooSlow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		pods := &fakePods{agent: "a", kubelet: true, startDelay: kubeletInterval * 11 / 10}
		if _, _, err := testLaunch(t.Context(), t, pods, launchConfig); err == nil || len(pods.created) != maxAttempts {
			t.Errorf("error %v after %d attempts, want %d", err, len(pods.created), maxAttempts)
		}
	})
}

// An error that another attempt would not avoid is returned at once.
func TestLaunchFinalErrors(t *testing.T) {
	unresolvable := failing("create", "unresolvable CDI devices")
	unresolvable.kubelet = true
	for _, pods := range []*fakePods{unresolvable, {agent: "a", kubelet: true, exitCode: 127}} {
		synctest.Test(t, func(t *testing.T) {
			if _, _, err := testLaunch(t.Context(), t, pods, launchConfig); err == nil || len(pods.created) != 1 {
				t.Errorf("error %v after %d attempts, want 1", err, len(pods.created))
			}
		})
	}
	synctest.Test(t, func(t *testing.T) {
		pods := &fakePods{agent: "a", kubelet: true, exitCode: killed}
		if _, _, err := testLaunch(t.Context(), t, pods, launchConfig); err == nil || len(pods.created) != maxAttempts {
			t.Errorf("error %v after %d attempts, want %d", err, len(pods.created), maxAttempts)
		}
	})
}

// A container that ends while it is killed is removed.
func TestLaunchRemovalRetry(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		pods := &fakePods{agent: "a", killErrs: []error{errors.New("ttrpc: closed")}}
		if output, _, err := testLaunch(t.Context(), t, pods, launchConfig); output != "output" || err != nil {
			t.Errorf("got %q, %v", output, err)
		}
	})
}

// Without a kubelet no pod is stopped, so a failure has another reason and is reported after one attempt.
func TestLaunchWithoutKubelet(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		pods := failing("exec", "no such program")
		if _, _, err := testLaunch(t.Context(), t, pods, launchConfig); err == nil || len(pods.created) != 1 {
			t.Errorf("error %v after %d attempts, want 1", err, len(pods.created))
		}
	})
}

// CRI-O delays the start of a container for two minutes if the kubelet is stopping its pod, which is ready until then.
func TestLaunchStartTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		pods := &fakePods{agent: "a", stopping: true}
		output, _, err := testLaunch(t.Context(), t, pods, launchConfig)
		if output != "output" || err != nil || len(pods.created) != 2 {
			t.Errorf("got %q, %v after %d attempts", output, err, len(pods.created))
		}
	})
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

// kubeletInterval is the time between two checks of a kubelet for pods that it does not manage.
const kubeletInterval = 2 * time.Second

// fakePods is a runtime with pods.
type fakePods struct {
	cri.RuntimeServiceClient
	agent    string           // image of the agent's container; empty for no agent
	leftover string           // ID of a pod of an earlier launch
	errs     map[string]error // error by operation
	hangs    string           // operation that blocks until its context ends
	exitCode int32            // exit code of ExecSync
	onExec   func()           // called by ExecSync, which then blocks until its context ends
	stopping bool             // the kubelet is stopping the first pod, so its container does not start
	killErrs []error          // returned by the next calls of StopContainer
	kubelet  bool             // a kubelet stops all pods every kubeletInterval

	startDelay time.Duration // time that StartContainer takes

	sandboxes map[string]*cri.PodSandbox
	running   []string              // IDs of the containers, same as those of their pods; they ignore SIGTERM
	config    *cri.PodSandboxConfig // of the latest pod
	created   []*cri.ContainerConfig
}

func (p *fakePods) fail(ctx context.Context, operation string) error {
	if p.hangs == operation {
		<-ctx.Done()
		return ctx.Err()
	}
	return p.errs[operation]
}

func (p *fakePods) RunPodSandbox(ctx context.Context, r *cri.RunPodSandboxRequest, _ ...grpc.CallOption) (*cri.RunPodSandboxResponse, error) {
	if err := p.fail(ctx, "run"); err != nil {
		return nil, err
	}
	p.config = r.Config
	id := r.Config.Metadata.Uid
	p.sandboxes[id] = &cri.PodSandbox{Id: id, Labels: r.Config.Labels, CreatedAt: time.Now().UnixNano()}
	return &cri.RunPodSandboxResponse{PodSandboxId: id}, nil
}

func (p *fakePods) ListPodSandbox(ctx context.Context, r *cri.ListPodSandboxRequest, _ ...grpc.CallOption) (*cri.ListPodSandboxResponse, error) {
	return &cri.ListPodSandboxResponse{Items: p.list(r.Filter.LabelSelector, r.Filter.State != nil)}, p.fail(ctx, "list pods")
}

// list returns the pods with all labels; only those that are ready if ready is set. Pods that the kubelet stops are ready
// until its next check, since their containers ignore SIGTERM and have a grace period of the same length.
func (p *fakePods) list(selector map[string]string, ready bool) (found []*cri.PodSandbox) {
	for _, s := range p.sandboxes {
		if labels.SelectorFromSet(selector).Matches(labels.Set(s.Labels)) && (!ready || !p.stopped(s, kubeletInterval)) {
			found = append(found, s)
		}
	}
	return found
}

// stopped reports whether a kubelet checked the pods between the creation of s and a time before now.
func (p *fakePods) stopped(s *cri.PodSandbox, before time.Duration) bool {
	return p.kubelet && time.Now().Add(-before).Truncate(kubeletInterval).After(time.Unix(0, s.CreatedAt))
}

func (p *fakePods) StopPodSandbox(ctx context.Context, r *cri.StopPodSandboxRequest, _ ...grpc.CallOption) (*cri.StopPodSandboxResponse, error) {
	if slices.Contains(p.running, r.PodSandboxId) {
		<-ctx.Done()
	}
	return &cri.StopPodSandboxResponse{}, ctx.Err()
}

func (p *fakePods) StopContainer(_ context.Context, r *cri.StopContainerRequest, _ ...grpc.CallOption) (*cri.StopContainerResponse, error) {
	p.running = slices.DeleteFunc(p.running, func(id string) bool { return id == r.ContainerId && r.Timeout == 0 })
	if len(p.killErrs) > 0 {
		err := p.killErrs[0]
		p.killErrs = p.killErrs[1:]
		return nil, err
	}
	return &cri.StopContainerResponse{}, nil
}

func (p *fakePods) RemovePodSandbox(_ context.Context, r *cri.RemovePodSandboxRequest, _ ...grpc.CallOption) (*cri.RemovePodSandboxResponse, error) {
	delete(p.sandboxes, r.PodSandboxId)
	return &cri.RemovePodSandboxResponse{}, nil
}

func (p *fakePods) ListContainers(ctx context.Context, r *cri.ListContainersRequest, _ ...grpc.CallOption) (*cri.ListContainersResponse, error) {
	found := &cri.ListContainersResponse{}
	if p.agent != "" && r.Filter.LabelSelector["io.kubernetes.container.name"] == "gpucdi" {
		found.Containers = []*cri.Container{{Image: &cri.ImageSpec{Image: p.agent}}}
	}
	if slices.Contains(p.running, r.Filter.PodSandboxId) {
		found.Containers = append(found.Containers, &cri.Container{Id: r.Filter.PodSandboxId})
	}
	return found, p.fail(ctx, "list containers")
}

func (p *fakePods) CreateContainer(ctx context.Context, r *cri.CreateContainerRequest, _ ...grpc.CallOption) (*cri.CreateContainerResponse, error) {
	p.created = append(p.created, r.Config)
	return &cri.CreateContainerResponse{ContainerId: r.PodSandboxId}, p.fail(ctx, "create")
}

func (p *fakePods) StartContainer(ctx context.Context, r *cri.StartContainerRequest, _ ...grpc.CallOption) (*cri.StartContainerResponse, error) {
	p.running = append(p.running, r.ContainerId)
	time.Sleep(p.startDelay)
	if p.stopping && len(p.created) == 1 {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	return &cri.StartContainerResponse{}, p.fail(ctx, "start")
}

func (p *fakePods) ExecSync(ctx context.Context, r *cri.ExecSyncRequest, _ ...grpc.CallOption) (*cri.ExecSyncResponse, error) {
	if p.onExec != nil {
		p.onExec()
		<-ctx.Done()
		return nil, ctx.Err()
	}
	if p.exitCode != 0 {
		return &cri.ExecSyncResponse{ExitCode: p.exitCode, Stderr: []byte("error output" + strings.Repeat(" continued", 1000))}, nil
	}
	if p.stopped(p.sandboxes[r.ContainerId], 0) {
		return nil, errors.New("container is stopping")
	}
	return &cri.ExecSyncResponse{Stdout: []byte("output")}, p.fail(ctx, "exec")
}
