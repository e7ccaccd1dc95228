package runtime

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"google.golang.org/grpc"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

var wanted = Launch{
	Device: "gpucdi.dev/gpu=GPU-1",
	Idle:   []string{"/usr/bin/gpucdi", "inside", "idle"},
	Probe:  []string{"/usr/bin/gpucdi", "inside", "look"},
}

// launched launches a container by that runtime, which has another pod, and says
// what pods it has left.
func launched(ctx context.Context, t *testing.T, pods *fakePods, l Launch) (printed, image string, err error) {
	t.Helper()
	pods.sandboxes = map[string]*cri.PodSandbox{"somebody's": {Id: "somebody's"}}
	if pods.before != "" {
		pods.sandboxes[pods.before] = &cri.PodSandbox{Id: pods.before, Labels: launchLabels}
	}
	out, image, err := launch(ctx, pods, "a.slice", l)
	if left := slices.Collect(maps.Keys(pods.sandboxes)); !slices.Equal(left, []string{"somebody's"}) {
		t.Errorf("the runtime has the pods %v", left)
	}
	return string(out), image, err
}

func TestLaunch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		pods := &fakePods{agent: "sha256:1234", before: "an aborted one's"}
		printed, image, err := launched(t.Context(), t, pods, wanted)
		if printed != "seen" || image != "sha256:1234" || err != nil {
			t.Errorf("got %q of %s, %v", printed, image, err)
		}
		c := pods.created[0]
		if len(c.CDIDevices) != 1 || c.CDIDevices[0].Name != wanted.Device || len(c.Mounts) > 0 || c.Image.Image != image {
			t.Errorf("it made the container %v", c)
		}
		if c.Labels["io.kubernetes.pod.uid"] != pods.config.Metadata.Uid || pods.config.Linux.CgroupParent != "a.slice" {
			t.Errorf("it made the container %v in the pod %v", c, pods.config)
		}
	})
}

func TestLaunchMountsTheNodesProgram(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := wanted
		l.Image, l.Programs = "debian", []string{"/opt/gpucdi"}
		pods := &fakePods{}
		if _, image, err := launched(t.Context(), t, pods, l); image != "debian" || err != nil {
			t.Errorf("got %s, %v", image, err)
		}
		if m := pods.created[0].Mounts; len(m) != 1 || m[0].HostPath != "/opt/gpucdi" || m[0].ContainerPath != "/opt/gpucdi" || !m[0].Readonly {
			t.Errorf("it mounts %v", m)
		}
	})
}

// Whatever fails, nothing is left behind.
func TestLaunchFails(t *testing.T) {
	for _, tc := range []struct {
		name string
		pods *fakePods
		says string
	}{
		{"no agent to take the image of", &fakePods{}, ErrNoImage.Error()},
		{"no pod", &fakePods{agent: "a", fails: map[string]error{"run": errors.New("no sandbox image")}}, "making a pod: no sandbox image"},
		{"no such device", &fakePods{agent: "a", fails: map[string]error{"create": errors.New("unresolvable CDI devices")}}, "unresolvable"},
		{"no such program", &fakePods{agent: "a", fails: map[string]error{"start": errors.New("no such file")}}, "starting a container of the image a with gpucdi.dev/gpu=GPU-1"},
		{"it hangs", &fakePods{agent: "a", fails: map[string]error{"exec": errors.New("timeout")}}, "running /usr/bin/gpucdi"},
		{"it ends", &fakePods{agent: "a", exit: 127}, "with 127: it says why"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				_, _, err := launched(t.Context(), t, tc.pods, wanted)
				if err == nil || !strings.Contains(err.Error(), tc.says) {
					t.Errorf("got %v, want %q", err, tc.says)
				}
			})
		})
	}
}

func TestLaunchIsRemovedWhenNobodyWaitsForIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		pods := &fakePods{agent: "a", looking: cancel}
		if _, _, err := launched(ctx, t, pods, wanted); !errors.Is(err, context.Canceled) || len(pods.created) != 1 {
			t.Errorf("it ends with %v after %d tries, want 1", err, len(pods.created))
		}
	})
}

// The kubelet ends pods that it does not know.
func TestLaunchTriesAgain(t *testing.T) {
	gone := map[string]error{"start": errors.New("the pod is gone")}
	synctest.Test(t, func(t *testing.T) {
		pods := &fakePods{agent: "a", fails: gone, times: 1}
		if printed, _, err := launched(t.Context(), t, pods, wanted); printed != "seen" || err != nil {
			t.Errorf("got %q, %v", printed, err)
		}
		pods = &fakePods{agent: "a", fails: gone}
		if _, _, err := launched(t.Context(), t, pods, wanted); err == nil || len(pods.created) != 3 {
			t.Errorf("it ends with %v after %d tries, want 3", err, len(pods.created))
		}
	})
}

// CRI-O starts no container while its pod is being ended, which lasts two minutes.
func TestLaunchDoesNotWaitForTheKubelet(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		pods := &fakePods{agent: "a", ending: true}
		if printed, _, err := launched(t.Context(), t, pods, wanted); printed != "seen" || err != nil || len(pods.created) != 2 {
			t.Errorf("got %q, %v after %d tries", printed, err, len(pods.created))
		}
	})
}

// With systemd as its manager of cgroups, containerd leaves it to the kubelet to name a slice.
func TestCgroupParent(t *testing.T) {
	for config, want := range map[string]string{
		`{"containerd":{"defaultRuntimeName":"runc","runtimes":{"runc":{"options":{"SystemdCgroup":true}}}}}`: "system.slice",
		`{"containerd":{"defaultRuntimeName":"runc","runtimes":{"runc":{"options":{}}}}}`:                     "",
		`{}`: "",
	} {
		if info, err := containerd(Info{}, config); err != nil || info.CgroupParent != want {
			t.Errorf("by %s the pod's cgroup is in %q, want %q (%v)", config, info.CgroupParent, want, err)
		}
	}
}

// fakePods are the pods of a runtime.
type fakePods struct {
	cri.RuntimeServiceClient
	agent   string           // the image of the agent's container; empty: there is none
	before  string           // a pod that was launched before
	fails   map[string]error // by what is done
	times   int              // so many containers fail; 0: all do
	exit    int32            // how the look ends
	looking func()           // called when somebody looks; then the look never ends
	ending  bool             // the kubelet is ending the first pod, and its container starts when that is over

	sandboxes map[string]*cri.PodSandbox
	running   []string              // the containers, called as their pods are; none heeds being asked to end
	config    *cri.PodSandboxConfig // of the latest
	created   []*cri.ContainerConfig
}

func (p *fakePods) fail(what string) error {
	if p.times > 0 && len(p.created) > p.times {
		return nil
	}
	return p.fails[what]
}

func (p *fakePods) RunPodSandbox(_ context.Context, r *cri.RunPodSandboxRequest, _ ...grpc.CallOption) (*cri.RunPodSandboxResponse, error) {
	if err := p.fail("run"); err != nil {
		return nil, err
	}
	p.config = r.Config
	id := r.Config.Metadata.Uid
	p.sandboxes[id] = &cri.PodSandbox{Id: id, Labels: r.Config.Labels}
	return &cri.RunPodSandboxResponse{PodSandboxId: id}, nil
}

func (p *fakePods) ListPodSandbox(_ context.Context, r *cri.ListPodSandboxRequest, _ ...grpc.CallOption) (*cri.ListPodSandboxResponse, error) {
	found := &cri.ListPodSandboxResponse{}
	for _, s := range p.sandboxes {
		if maps.Equal(s.Labels, r.Filter.LabelSelector) {
			found.Items = append(found.Items, s)
		}
	}
	return found, nil
}

func (p *fakePods) StopPodSandbox(ctx context.Context, r *cri.StopPodSandboxRequest, _ ...grpc.CallOption) (*cri.StopPodSandboxResponse, error) {
	if slices.Contains(p.running, r.PodSandboxId) {
		<-ctx.Done()
	}
	return &cri.StopPodSandboxResponse{}, ctx.Err()
}

func (p *fakePods) StopContainer(_ context.Context, r *cri.StopContainerRequest, _ ...grpc.CallOption) (*cri.StopContainerResponse, error) {
	p.running = slices.DeleteFunc(p.running, func(id string) bool { return id == r.ContainerId && r.Timeout == 0 })
	return &cri.StopContainerResponse{}, nil
}

func (p *fakePods) RemovePodSandbox(_ context.Context, r *cri.RemovePodSandboxRequest, _ ...grpc.CallOption) (*cri.RemovePodSandboxResponse, error) {
	delete(p.sandboxes, r.PodSandboxId)
	return &cri.RemovePodSandboxResponse{}, nil
}

func (p *fakePods) ListContainers(_ context.Context, r *cri.ListContainersRequest, _ ...grpc.CallOption) (*cri.ListContainersResponse, error) {
	found := &cri.ListContainersResponse{}
	if p.agent != "" && r.Filter.LabelSelector["io.kubernetes.container.name"] == "gpucdi" {
		found.Containers = []*cri.Container{{Image: &cri.ImageSpec{Image: p.agent}}}
	}
	if maps.Equal(r.Filter.LabelSelector, launchLabels) {
		for _, id := range p.running {
			found.Containers = append(found.Containers, &cri.Container{Id: id})
		}
	}
	return found, nil
}

func (p *fakePods) CreateContainer(_ context.Context, r *cri.CreateContainerRequest, _ ...grpc.CallOption) (*cri.CreateContainerResponse, error) {
	p.created = append(p.created, r.Config)
	return &cri.CreateContainerResponse{ContainerId: r.PodSandboxId}, p.fail("create")
}

func (p *fakePods) StartContainer(ctx context.Context, r *cri.StartContainerRequest, _ ...grpc.CallOption) (*cri.StartContainerResponse, error) {
	p.running = append(p.running, r.ContainerId)
	if p.ending && len(p.created) == 1 {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	return &cri.StartContainerResponse{}, p.fail("start")
}

func (p *fakePods) ExecSync(ctx context.Context, _ *cri.ExecSyncRequest, _ ...grpc.CallOption) (*cri.ExecSyncResponse, error) {
	if p.looking != nil {
		p.looking()
		<-ctx.Done()
		return nil, ctx.Err()
	}
	if p.exit != 0 {
		return &cri.ExecSyncResponse{ExitCode: p.exit, Stderr: []byte("it says why")}, nil
	}
	return &cri.ExecSyncResponse{Stdout: []byte("seen")}, p.fail("exec")
}
