package nri_test

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/containerd/nri/pkg/adaptation"
	"github.com/containerd/nri/pkg/api"
	"github.com/containerd/nri/pkg/log"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/gpucdi/gpucdi/internal/host"
	"github.com/gpucdi/gpucdi/runtime"
	"github.com/gpucdi/gpucdi/runtime/nri"
)

func TestMain(m *testing.M) {
	log.Set(quiet{})
	goleak.VerifyTestMain(m)
}

// quiet drops the messages of the runtime's side.
type quiet struct{}

func (quiet) Debugf(context.Context, string, ...any) {}
func (quiet) Infof(context.Context, string, ...any)  {}
func (quiet) Warnf(context.Context, string, ...any)  {}
func (quiet) Errorf(context.Context, string, ...any) {}

// runtimeSide is the NRI of a container runtime.
type runtimeSide struct {
	*testing.T
	*adaptation.Adaptation
	node host.Root
}

func newRuntime(t *testing.T) *runtimeSide {
	t.Helper()
	root, err := os.MkdirTemp("", "nri") //nolint:usetesting // the path of a socket must be short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(root) })
	if err := os.MkdirAll(filepath.Join(root, filepath.Dir(nri.Socket)), 0o700); err != nil {
		t.Fatal(err)
	}
	r := &runtimeSide{T: t, node: host.NewRoot(root)}
	r.start()
	return r
}

func (r *runtimeSide) start() {
	r.Helper()
	synchronize := func(ctx context.Context, with adaptation.SyncCB) error {
		_, err := with(ctx, nil, nil)
		return err
	}
	update := func(context.Context, []*api.ContainerUpdate) ([]*api.ContainerUpdate, error) { return nil, nil }
	var err error
	r.Adaptation, err = adaptation.New("containerd", "v2.4.2", synchronize, update,
		adaptation.WithPluginPath(r.node.LocalPath("/none")), adaptation.WithPluginConfigPath(r.node.LocalPath("/none")),
		adaptation.WithSocketPath(r.node.LocalPath(nri.Socket)))
	if err != nil {
		r.Fatal(err)
	}
	if err := r.Start(); err != nil {
		r.Fatal(err)
	}
	r.Cleanup(r.Stop)
}

// run runs a plugin until the test ends.
func (r *runtimeSide) run(cfg nri.Config) *nri.Plugin {
	cfg.Node = r.node
	plugin := nri.New(cfg, slog.New(slog.NewTextHandler(r.Output(), nil)))
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() { defer close(ended); plugin.Run(ctx) }()
	r.Cleanup(func() { cancel(); <-ended })
	return plugin
}

func await(t *testing.T, plugin *nri.Plugin, connected bool) {
	t.Helper()
	for range 1000 {
		if s := plugin.Status(); s.Since.IsZero() != connected {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Fatalf("status %+v, want connected: %t", plugin.Status(), connected)
}

// awaitCalls waits until the runtime calls the plugin for containers, which begins some time after the plugin reports
// that it is connected.
func (r *runtimeSide) awaitCalls(calls *atomic.Int32) {
	r.Helper()
	for range 1000 {
		before := calls.Load()
		if _, err := r.create(newContainer()); err != nil || calls.Load() > before {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	r.Fatal("the plugin is not called")
}

func newContainer() *api.Container {
	return &api.Container{Id: "0123", Name: "main", PodSandboxId: "pod", Labels: map[string]string{runtime.LabelContainerName: "main"}, Linux: &api.LinuxContainer{
		CgroupsPath: "kubepods-besteffort-poduid.slice:cri-containerd:0123",
		Devices: []*api.LinuxDevice{
			{Path: "/dev/nvidia0", Type: "c", Major: 195, Minor: 0},
			{Path: "/dev/sda", Type: "b", Major: 8, Minor: 0},
		},
		Resources: &api.LinuxResources{Devices: []*api.LinuxDeviceCgroup{
			{Allow: false, Type: "a"}, {Allow: true, Type: "c", Major: &api.OptionalInt64{Value: 195}},
		}},
	}}
}

var pod = &api.PodSandbox{Id: "pod", Uid: "uid", Namespace: "team", Name: "train"}

func (r *runtimeSide) create(c *api.Container) (*api.CreateContainerResponse, error) {
	return r.CreateContainer(r.Context(), &api.CreateContainerRequest{Pod: pod, Container: c})
}

// The plugin is called with the identity, the devices and the cgroup of a container. An error rejects the container.
func TestCalls(t *testing.T) {
	r := newRuntime(t)
	var calls atomic.Int32
	created, started := make(chan runtime.Container, 100), make(chan string, 1)
	plugin := r.run(nri.Config{
		Create: func(_ context.Context, c runtime.Container) error {
			calls.Add(1)
			created <- c
			if c.Privileged {
				return errors.New("container lacks its GPU")
			}
			return nil
		},
		Start: func(ctx context.Context, c runtime.Container, cgroup string) {
			checkDeadline(ctx, t, adaptation.DefaultPluginRequestTimeout)
			started <- c.String() + " " + cgroup
		},
	})
	await(t, plugin, true)
	if s := plugin.Status(); s.Runtime != "containerd v2.4.2" || s.Problem != "" {
		t.Errorf("status %+v", s)
	}
	r.awaitCalls(&calls)
	c := <-created
	if c.String() != "team/train/main" || c.Pod.UID != "uid" || c.ID != "0123" || c.Privileged ||
		!slices.Equal(slices.Collect(maps.Keys(c.Devices)), []uint64{unix.Mkdev(195, 0)}) {
		t.Errorf("container %+v", c)
	}
	privileged := newContainer()
	privileged.Linux.Resources.Devices = []*api.LinuxDeviceCgroup{{Allow: true}}
	if _, err := r.create(privileged); err == nil || !strings.Contains(err.Error(), "container lacks its GPU") {
		t.Errorf("error %v", err)
	}
	launched := newContainer()
	launched.Labels = nil
	before := calls.Load()
	if _, err := r.create(launched); err != nil || calls.Load() != before {
		t.Errorf("a container that the kubelet did not create is checked, error %v", err)
	}
	for path, want := range map[string]string{
		"kubepods-besteffort-poduid.slice:crio:0123": "crio-0123.scope",
		"/kubepods/besteffort/poduid/0123":           "0123",
		"/kubepods/../..":                            "",
		"":                                           "",
	} {
		c := newContainer()
		c.Linux.CgroupsPath = path
		if err := r.StartContainer(t.Context(), &api.StartContainerRequest{Pod: pod, Container: c}); err != nil {
			t.Error(err)
		}
		if want == "" {
			if len(started) > 0 {
				t.Errorf("%q: started %s", path, <-started)
			}
			continue
		}
		if got := <-started; got != "team/train/main "+want {
			t.Errorf("%q: started %s, want cgroup %s", path, got, want)
		}
	}
}

// checkDeadline checks that a call of the plugin ends within half of the runtime's timeout.
func checkDeadline(ctx context.Context, t *testing.T, timeout time.Duration) {
	t.Helper()
	deadline, limited := ctx.Deadline()
	if left := time.Until(deadline); !limited || left > timeout/2 {
		t.Errorf("limited: %t, %s until the deadline, want at most half of %s", limited, left, timeout)
	}
}

// The plugin allows a container whose check is slow within half of the runtime's timeout, and checks later containers
// again.
func TestSlowCheck(t *testing.T) {
	const timeout = 3 * time.Second
	adaptation.SetPluginRequestTimeout(timeout)
	t.Cleanup(func() { adaptation.SetPluginRequestTimeout(adaptation.DefaultPluginRequestTimeout) })
	r := newRuntime(t)
	var calls atomic.Int32
	release := make(chan struct{})
	plugin := r.run(nri.Config{Create: func(ctx context.Context, c runtime.Container) error {
		calls.Add(1)
		checkDeadline(ctx, t, timeout)
		if c.ID == "slow" {
			<-release
		}
		return nil
	}})
	await(t, plugin, true)
	r.awaitCalls(&calls)
	slow := newContainer()
	slow.Id = "slow"
	if _, err := r.create(slow); err != nil {
		t.Error(err)
	}
	close(release)
	before := calls.Load()
	if _, err := r.create(newContainer()); err != nil || calls.Load() != before+1 {
		t.Errorf("%d calls after a slow one, error %v", calls.Load()-before, err)
	}
}

// The plugin connects again after the connection is lost, even if the runtime had not configured it yet.
func TestReconnects(t *testing.T) {
	r := newRuntime(t)
	socket, moved := r.node.LocalPath(nri.Socket), r.node.LocalPath("/moved.sock")
	if err := os.Rename(socket, moved); err != nil {
		t.Fatal(err)
	}
	listener, err := new(net.ListenConfig).Listen(t.Context(), "unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	var calls atomic.Int32
	plugin := r.run(nri.Config{Create: func(context.Context, runtime.Container) error { calls.Add(1); return nil }})
	for range 2 {
		unanswered, err := listener.Accept()
		if err != nil {
			t.Fatal(err)
		}
		_ = unanswered.Close()
		conn, err := listener.Accept()
		if err != nil {
			t.Fatal(err)
		}
		forwarded := forward(t, conn, moved)
		await(t, plugin, true)
		r.awaitCalls(&calls)
		_ = conn.Close()
		<-forwarded
		await(t, plugin, false)
		if plugin.Status().Problem == "" {
			t.Error("no problem while it is not connected")
		}
	}
}

// forward connects a connection with the socket at path. The channel is closed when either ends.
func forward(t *testing.T, conn net.Conn, path string) <-chan struct{} {
	t.Helper()
	other, err := new(net.Dialer).DialContext(t.Context(), "unix", path)
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	var copies sync.WaitGroup
	for from, to := range map[net.Conn]net.Conn{conn: other, other: conn} {
		copies.Go(func() {
			_, _ = io.Copy(to, from)
			_ = from.Close()
			_ = to.Close()
		})
	}
	go func() { defer close(ended); copies.Wait() }()
	return ended
}

func TestNoRuntime(t *testing.T) {
	r := newRuntime(t)
	r.Stop()
	_ = os.Remove(r.node.LocalPath(nri.Socket))
	plugin := r.run(nri.Config{})
	for range 1000 {
		if strings.Contains(plugin.Status().Problem, "no such file") {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Errorf("status %+v", plugin.Status())
}
