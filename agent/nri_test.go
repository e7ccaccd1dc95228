package agent

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpucdi/gpucdi/allocator"
	"github.com/gpucdi/gpucdi/config"
	"github.com/gpucdi/gpucdi/internal/host"
	"github.com/gpucdi/gpucdi/runtime"
	"github.com/gpucdi/gpucdi/runtime/nri"
)

// The status has the reason why the plugin is not connected, while the config enables it.
func TestNRIStatus(t *testing.T) {
	a := New(Config{}, slog.New(slog.DiscardHandler))
	if got := a.nriStatus(); got != nil {
		t.Errorf("disabled: %+v", got)
	}
	a.nri.Store(nri.New(nri.Config{}, a.log))
	if got := a.nriStatus(); got == nil || got.Error == "" || !got.Connected.IsZero() {
		t.Errorf("not connected: %+v", got)
	}
}

// newCheckingAgent returns an agent of a node with two GPUs. GPU-1 is allocated to container main of a pod.
func newCheckingAgent(t *testing.T) (a *Agent, log *bytes.Buffer) {
	t.Helper()
	log = &bytes.Buffer{}
	root := t.TempDir()
	a = New(Config{Node: host.NewRoot(root), KubeletDir: filepath.Join(root, "kubelet")}, slog.New(slog.NewTextHandler(log, nil)))
	now := newAuditedLoop().snapshot
	a.latest.Store(&now)
	cdi := "gpucdi.dev/gpu=GPU-1"
	response := string([]byte{5<<3 | 2, byte(len(cdi) + 2), 1<<3 | 2, byte(len(cdi))}) + cdi // a ContainerAllocateResponse
	entry := map[string]any{"PodUID": "uid", "ContainerName": "main", "ResourceName": "nvidia.com/gpu",
		"DeviceIDs": map[string][]string{"-1": {"GPU-1"}}, "AllocResp": []byte(response)}
	data, err := json.Marshal(map[string]any{"Data": map[string]any{"PodDeviceEntries": []any{entry}}})
	if err != nil {
		t.Fatal(err)
	}
	dir := a.cfg.devicePluginDir()
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "kubelet_internal_checkpoint"), data, 0o600); err != nil {
		t.Fatal(err)
	}
	return a, log
}

func TestCheckContainer(t *testing.T) {
	a, log := newCheckingAgent(t)
	pod := runtime.Pod{UID: "uid", Namespace: "default", Name: "pod"}
	container := func(name string, minors ...uint32) runtime.Container {
		c := runtime.Container{Name: name, Pod: pod, Devices: map[uint64]bool{}}
		for _, minor := range minors {
			c.Devices[unix.Mkdev(195, minor)] = true
		}
		return c
	}
	check := func(c runtime.Container, want string) {
		t.Helper()
		log.Reset()
		err := a.checkContainer(t.Context(), c)
		if err == nil && want != "" || err != nil && (want == "" || !strings.Contains(err.Error(), want)) {
			t.Errorf("%s with %v: error %v, want %q", c, c.Devices, err, want)
		}
	}
	privileged := container("main")
	privileged.Privileged = true
	check(container("main", 1), "")
	check(container("sidecar"), "")
	check(privileged, "")
	check(container("main"), "container default/pod/main lacks the device nodes of GPU-1, which were allocated to it")
	check(container("sidecar", 0), "")
	if !strings.Contains(log.String(), "container=default/pod/sidecar gpus=[GPU-0]") {
		t.Errorf("log %s", log)
	}
	rejecting := *a.latest.Load()
	rejecting.config.NRI.Foreign = config.ForeignReject
	a.latest.Store(&rejecting)
	check(container("main", 0, 1), "container default/pod/main has device nodes of GPU-0, which were not allocated to it")

	// Another DRA driver may have allocated the GPU.
	node, dir := a.cfg.kubeletRoot()
	claims := node.LocalPath(filepath.Join(dir, "dra_manager_state"))
	if err := os.MkdirAll(filepath.Dir(claims), 0o700); err != nil {
		t.Fatal(err)
	}
	write := func(path, text string) {
		t.Helper()
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	const state = `{"Data": "{\"ClaimInfoStateList\": [{\"ClaimUID\": \"c\", \"PodUIDs\": {\"%s\": {}}, \"DriverState\": {\"other.example.com\": {}}}]}"}`
	write(claims, fmt.Sprintf(state, "another"))
	check(container("main", 0, 1), "which were not allocated to it")
	write(claims, fmt.Sprintf(state, "uid"))
	check(container("main", 0, 1), "")

	// Containers whose allocation is unknown are not rejected.
	write(claims, fmt.Sprintf(state, "another"))
	checkpoint := filepath.Join(a.cfg.devicePluginDir(), "kubelet_internal_checkpoint")
	if err := os.Remove(checkpoint); err != nil {
		t.Fatal(err)
	}
	check(container("main", 0, 1), "")
	write(checkpoint, "{")
	check(container("main", 0), "")
	if !strings.Contains(log.String(), "container not checked through NRI") {
		t.Errorf("log %s", log)
	}
	a.latest.Store(newSnapshot())
	check(container("main", 0), "")
}

// The kubelet reports which containers of a pod have the devices of its claim. If it does not respond, or reports no
// devices of claims, their containers pass.
func TestCheckContainerOfClaim(t *testing.T) {
	a, log := newCheckingAgent(t)
	a.cfg.DRADriver = "gpu.nvidia.com"
	node, dir := a.cfg.kubeletRoot()
	const state = `{"Data": "{\"ClaimInfoStateList\": [{\"ClaimUID\": \"c\", \"ClaimName\": \"claim\", \"Namespace\": \"default\", \"PodUIDs\": {\"claims\": {}}, ` +
		`\"DriverState\": {\"gpu.nvidia.com\": {\"Devices\": [{\"PoolName\": \"node\", \"DeviceName\": \"gpu-0\", \"CDIDeviceIDs\": [\"gpucdi.dev/gpu=GPU-0\"]}]}}}]}"}`
	claims := node.LocalPath(filepath.Join(dir, "dra_manager_state"))
	if err := errors.Join(os.MkdirAll(filepath.Dir(claims), 0o700), os.WriteFile(claims, []byte(state), 0o600)); err != nil {
		t.Fatal(err)
	}
	pod := runtime.Pod{UID: "claims", Namespace: "default", Name: "pod"}
	main := runtime.Container{Name: "main", Pod: pod}
	if err := a.checkContainer(t.Context(), main); err != nil || !strings.Contains(log.String(), "devices of claims not checked through NRI") {
		t.Errorf("without a kubelet: error %v, log %s", err, log)
	}
	a.holders.serve(t)
	if err := a.checkContainer(t.Context(), main); err == nil || !strings.Contains(err.Error(), "container default/pod/main lacks the device nodes of GPU-0") {
		t.Errorf("error %v", err)
	}
	main.Devices = map[uint64]bool{unix.Mkdev(195, 0): true}
	for _, c := range []runtime.Container{main, {Name: "sidecar", Pod: pod}} {
		if err := a.checkContainer(t.Context(), c); err != nil {
			t.Errorf("%s: %v", c, err)
		}
	}
}

// A container gets the limit of its pod. Without dmem it does not, because then the pod could use more than its limit.
func TestLimitContainer(t *testing.T) {
	for controllers, want := range map[string]map[string]uint64{
		"cpu dmem": {"/sys/fs/cgroup/kubepods/poduid": 1 << 30, "/sys/fs/cgroup/kubepods/poduid/c": 1 << 30},
		"cpu misc": {"/sys/fs/cgroup/kubepods/poduid": 1 << 30},
	} {
		a, log := newCheckingAgent(t)
		dir := a.cfg.Node.LocalPath("/sys/fs/cgroup")
		err := errors.Join(os.MkdirAll(filepath.Join(dir, "kubepods/poduid"), 0o755), os.WriteFile(filepath.Join(dir, "cgroup.controllers"), []byte(controllers), 0o600))
		if err != nil {
			t.Fatal(err)
		}
		limits := a.memoryLimits(allocator.NewGate(time.Now))
		settings := &fakeMemorySettings{limits: map[string]uint64{"/sys/fs/cgroup/kubepods/poduid": 1 << 30}}
		limits.settings = settings
		c := runtime.Container{Name: "main", Pod: runtime.Pod{UID: "uid"}, Devices: map[uint64]bool{unix.Mkdev(195, 1): true}}
		for range 2 {
			limits.limitContainer(t.Context(), c, "c")
		}
		if !maps.Equal(settings.limits, want) {
			t.Errorf("with controllers %q: %v, want %v", controllers, settings.limits, want)
		}
		if n := strings.Count(log.String(), "memory limits not set on containers"); n != 2-len(want) {
			t.Errorf("with controllers %q it is logged %d times: %s", controllers, n, log)
		}
	}
}
