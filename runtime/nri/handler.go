package nri

import (
	"context"
	"path"
	"strings"
	"time"

	"github.com/containerd/nri/pkg/api"
	"github.com/containerd/nri/pkg/stub"
	oci "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/gpucdi/gpucdi/runtime"
)

// handler handles the calls of a connection.
type handler struct {
	*Plugin
	stub stub.Stub

	// Guarded by mu of the Plugin.
	runtime string        // name and version
	timeout time.Duration // of the runtime, for the response to a call
}

// Configure implements stub.ConfigureInterface.
func (h *handler) Configure(_ context.Context, _, name, version string) (api.EventMask, error) {
	h.mu.Lock()
	h.runtime, h.timeout = name+" "+version, h.stub.RequestTimeout()
	if h.timeout <= 0 { // the runtime has not sent it
		h.timeout = stub.DefaultRequestTimeout
	}
	h.mu.Unlock()
	return 0, nil // 0 subscribes to the events that handler has methods for
}

// Synchronize implements stub.SynchronizeInterface. The runtime calls the plugin for containers after it returns.
func (h *handler) Synchronize(context.Context, []*api.PodSandbox, []*api.Container) ([]*api.ContainerUpdate, error) {
	h.mu.Lock()
	name := h.runtime
	h.mu.Unlock()
	h.setStatus(Status{Runtime: name, Since: time.Now()})
	h.log.Info("NRI connected", "runtime", name)
	return nil, nil
}

// CreateContainer implements stub.CreateContainerInterface.
func (h *handler) CreateContainer(ctx context.Context, pod *api.PodSandbox, c *api.Container) (*api.ContainerAdjustment, []*api.ContainerUpdate, error) {
	container, byKubelet := newContainer(pod, c)
	if !byKubelet {
		return nil, nil, nil
	}
	return nil, nil, h.within(ctx, container, func(ctx context.Context) error { return h.cfg.Create(ctx, container) })
}

// StartContainer implements stub.StartContainerInterface.
func (h *handler) StartContainer(ctx context.Context, pod *api.PodSandbox, c *api.Container) error {
	container, byKubelet := newContainer(pod, c)
	if !byKubelet {
		return nil
	}
	return h.within(ctx, container, func(ctx context.Context) error {
		if name := cgroupName(c.GetLinux().GetCgroupsPath()); name != "" {
			h.cfg.Start(ctx, container, name)
		}
		return nil
	})
}

// within calls do, and allows the container if do takes more than half of the runtime's timeout. Other containers of
// the node wait meanwhile, since runtimes make one call at a time.
func (h *handler) within(ctx context.Context, c runtime.Container, do func(context.Context) error) error {
	h.mu.Lock()
	limit := h.timeout / 2
	h.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, limit)
	select {
	case h.calls <- struct{}{}:
	default:
		cancel()
		h.log.Warn("container not checked through NRI, earlier calls have not returned", "container", c.String())
		return nil
	}
	done := make(chan error, 1)
	go func() {
		defer cancel()
		err := do(ctx)
		<-h.calls
		done <- err
	}()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
	}
	select {
	case err := <-done: // do has returned, which also ends ctx
		return err
	default:
	}
	h.log.Warn("container not checked through NRI in time", "container", c.String(), "limit", limit)
	return nil
}

// newContainer returns a container with the devices of its OCI spec. byKubelet is false for a container that the
// kubelet did not create, such as one of runtime.Launch.
func newContainer(pod *api.PodSandbox, c *api.Container) (container runtime.Container, byKubelet bool) {
	name := c.GetLabels()[runtime.LabelContainerName]
	container = runtime.Container{
		ID: c.GetId(), Name: name, Pod: runtime.Pod{UID: pod.GetUid(), Namespace: pod.GetNamespace(), Name: pod.GetName()},
	}
	var devices []oci.LinuxDevice
	for _, d := range c.GetLinux().GetDevices() {
		devices = append(devices, d.ToOCI())
	}
	var rules []oci.LinuxDeviceCgroup
	if r := c.GetLinux().GetResources(); r != nil {
		rules = r.ToOCI().Devices
	}
	container.SetDevices(devices, rules)
	return container, name != ""
}

// cgroupName returns the name of a container's cgroup; empty if it is invalid. The path is "<parent>/<name>" with the
// cgroupfs driver, and "<slice>:<prefix>:<name>" with the systemd driver.
func cgroupName(cgroupsPath string) string {
	name := path.Base(cgroupsPath)
	if parts := strings.Split(cgroupsPath, ":"); len(parts) == 3 {
		name = path.Base(parts[1] + "-" + parts[2] + ".scope")
	}
	if name == "." || name == ".." || name == "/" {
		return ""
	}
	return name
}
