package product_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/gpucdi/gpucdi/test/node/tools"
	"github.com/gpucdi/gpucdi/test/simdriver"
)

// limitDriver is a driver version with memory limits, which require driver 615.
const limitDriver = "615.71.09"

const (
	cgroupDir = "/sys/fs/cgroup"
	pod       = cgroupDir + "/kubepods/pod1"
	unlimited = 1<<64 - 1
	wait      = 2 * time.Minute
)

// settingsHost is a host on which the program gpu/driver/testdata/settings runs with a driver worker.
type settingsHost struct {
	host
	calls   io.Writer
	results chan result            // of calls
	limits  chan map[string]string // memoryLimits by UUID, of each inventory
	failed  chan string            // UUIDs of GPUs that made the worker hang or crash
}

// result is the result of a call.
type result struct {
	Limit       uint64
	Mode        string
	Error       string
	Unsupported bool
}

// newSettingsHost returns a host with cgroup v2 and these cgroups, which are paths below /sys/fs/cgroup.
func newSettingsHost(t *testing.T, binary string, profile simdriver.Profile, cgroups ...string) *settingsHost {
	t.Helper()
	n := &settingsHost{host: newHost(t, binary, profile), results: make(chan result),
		limits: make(chan map[string]string, 1000), failed: make(chan string, 1000)}
	for _, name := range append(cgroups, ".") {
		n.addCgroup(t, name)
	}
	if err := os.WriteFile(filepath.Join(n.root, cgroupDir, "cgroup.controllers"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	return n
}

func (n *settingsHost) addCgroup(t *testing.T, name string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Join(n.root, cgroupDir, name), 0o755); err != nil {
		t.Fatal(err)
	}
}

func (n *settingsHost) start(t *testing.T) {
	t.Helper()
	module, err := tools.ModuleDir(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	program := filepath.Join(filepath.Dir(n.binary), "settings")
	build := exec.CommandContext(t.Context(), "go", "build", "-race", "-o", program, "./gpu/driver/testdata/settings")
	build.Dir = filepath.Dir(module)
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	ctx, cancel := context.WithCancel(context.Background())
	cmd := exec.CommandContext(ctx, program, "--host-root", n.root, "--worker", filepath.Join(filepath.Dir(n.binary), "gpucdi-nvml"))
	cmd.Env = append(os.Environ(), n.driver.Env("")...)
	cmd.Stderr = os.Stderr
	n.calls, err = cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		n.read(ctx, out)
	}()
	t.Cleanup(func() {
		cancel()
		<-ended
		_ = cmd.Wait()
	})
}

// read sends each line of the program's output to the channel of its kind.
func (n *settingsHost) read(ctx context.Context, out io.Reader) {
	for lines := bufio.NewScanner(out); lines.Scan(); {
		var line struct {
			result
			MemoryLimits map[string]string
			Failure      string
		}
		if err := json.Unmarshal(lines.Bytes(), &line); err != nil {
			line.Error = err.Error()
		}
		switch {
		case line.MemoryLimits != nil:
			send(ctx, n.limits, line.MemoryLimits)
		case line.Failure != "":
			send(ctx, n.failed, line.Failure)
		default:
			send(ctx, n.results, line.result)
		}
	}
}

func send[T any](ctx context.Context, to chan<- T, value T) {
	select {
	case to <- value:
	case <-ctx.Done():
	}
}

func (n *settingsHost) call(t *testing.T, call string, args ...any) result {
	t.Helper()
	fmt.Fprintln(n.calls, append([]any{call}, args...)...)
	select {
	case r := <-n.results:
		return r
	case <-time.After(wait):
		t.Fatalf("no result of %s %v", call, args)
	}
	return result{}
}

// awaitLimits waits for an inventory in which memoryLimits is want for all GPUs.
func (n *settingsHost) awaitLimits(t *testing.T, want string) {
	t.Helper()
	deadline := time.After(wait)
	for last := map[string]string(nil); ; {
		select {
		case last = <-n.limits:
			if got := slices.Compact(slices.Collect(maps.Values(last))); slices.Equal(got, []string{want}) {
				return
			}
		case <-deadline:
			t.Fatalf("memory limits are %v, want %q", last, want)
		}
	}
}

func (n *settingsHost) awaitFailure(t *testing.T, uuid string) {
	t.Helper()
	select {
	case got := <-n.failed:
		if got != uuid {
			t.Errorf("the failure was attributed to %s, want %s", got, uuid)
		}
	case <-time.After(wait):
		t.Error("no failure was reported")
	}
}

func (n *settingsHost) uuid(index int) string { return n.driver.State().GPUs[index].UUID }

// killWorker kills the driver worker of this host.
func (n *settingsHost) killWorker(t *testing.T) {
	t.Helper()
	processes, err := filepath.Glob("/proc/[0-9]*/exe")
	if err != nil {
		t.Fatal(err)
	}
	for _, exe := range processes {
		if target, _ := os.Readlink(exe); target != filepath.Join(filepath.Dir(n.binary), "gpucdi-nvml") {
			continue
		}
		pid, err := strconv.Atoi(filepath.Base(filepath.Dir(exe)))
		if err == nil {
			err = syscall.Kill(pid, syscall.SIGKILL)
		}
		if err != nil {
			t.Fatal(err)
		}
		return
	}
	t.Fatal("no worker is running")
}

func h100With(version string) simdriver.Profile {
	p := simdriver.H100x8()
	p.Version = version
	return p
}

// memoryLimit sets a limit, which belongs to one cgroup and one GPU, and removes it.
func memoryLimit(t *testing.T, binary string) {
	n := newSettingsHost(t, binary, h100With(limitDriver), "kubepods/pod1", "kubepods/pod2")
	n.start(t)
	n.awaitLimits(t, "supported")
	const limit = 2048 << 20
	if r := n.call(t, "limit", n.uuid(3), pod, limit); r.Error != "" {
		t.Fatal(r.Error)
	}
	check := func(uuid, cgroup string, want uint64) {
		t.Helper()
		if r := n.call(t, "limit", uuid, cgroup); r.Limit != want || r.Error != "" {
			t.Errorf("limit of %s on %s: got %d, %s; want %d", cgroup, uuid, r.Limit, r.Error, want)
		}
	}
	check(n.uuid(3), pod, limit)
	check(n.uuid(4), pod, unlimited)
	check(n.uuid(3), cgroupDir+"/kubepods/pod2", unlimited)
	for name, tc := range map[string]struct {
		uuid, cgroup string
		limit        uint64
		want         string
	}{
		"more than the GPU has": {n.uuid(3), pod, n.driver.State().GPUs[3].Memory + 1, "setting the memory limit of cgroup " + pod},
		"removed cgroup":        {n.uuid(3), cgroupDir + "/kubepods/gone", limit, "cgroup /sys/fs/cgroup/kubepods/gone: "},
		"outside of cgroups":    {n.uuid(3), cgroupDir + "/../../etc", limit, "is not a cgroup below /sys/fs/cgroup"},
		"unknown GPU":           {"GPU-x", pod, limit, "not in the inventory"},
		"less than a page":      {n.uuid(3), pod, 1, "want at least 2097152"},
	} {
		if r := n.call(t, "limit", tc.uuid, tc.cgroup, tc.limit); !strings.Contains(r.Error, tc.want) || r.Unsupported {
			t.Errorf("%s: %+v, want %q", name, r, tc.want)
		}
	}
	check(n.uuid(3), pod, limit)

	// A driver may report a cgroup without limits as not found.
	const notFound = 6
	if err := n.driver.InjectFault(simdriver.Fault{Func: "nvmlDeviceGetMemoryLimits_v1", Return: notFound}); err != nil {
		t.Fatal(err)
	}
	check(n.uuid(5), pod, unlimited)
	if r := n.call(t, "limit", n.uuid(5), pod, uint64(unlimited)); r.Error != "" {
		t.Error(r.Error)
	}
	if err := n.driver.ClearFaults(); err != nil {
		t.Fatal(err)
	}

	// The driver enforces the limit without the worker.
	n.killWorker(t)
	for start := time.Now(); ; time.Sleep(10 * time.Millisecond) {
		r := n.call(t, "limit", n.uuid(3), pod)
		if r.Limit == limit {
			break
		}
		if strings.Contains(r.Error, "not in the inventory") {
			t.Error("the new worker did not wait until it knows the GPUs: ", r.Error)
		}
		if time.Since(start) > wait {
			t.Fatal("the limit was lost with the worker")
		}
	}
	if r := n.call(t, "limit", n.uuid(3), pod, uint64(unlimited)); r.Error != "" {
		t.Fatal(r.Error)
	}
	check(n.uuid(3), pod, unlimited)
}

// Where limits are not possible, the inventory has the reason, and calls fail.
func memoryLimitUnsupported(t *testing.T, binary string) {
	mig := simdriver.A100MIG()
	mig.Version = limitDriver
	mig.GPUs = slices.DeleteFunc(mig.GPUs, func(g simdriver.GPU) bool { return g.MIGMode != 1 })
	for name, tc := range map[string]struct {
		profile simdriver.Profile
		prepare func(n *settingsHost) error
		want    string
	}{
		"driver without the functions": {h100With("595.58.03"), func(n *settingsHost) error {
			return n.driver.RemoveFunctions("nvmlDeviceSetMemoryLimits_v1", "nvmlDeviceGetMemoryLimits_v1")
		}, "driver-older-than-615"},
		"MIG": {mig, nil, "mig-mode"},
		"refused": {h100With(limitDriver), func(n *settingsHost) error {
			const notSupported = 3
			return n.driver.InjectFault(simdriver.Fault{Func: "nvmlDeviceGetMemoryLimits_v1", Return: notSupported})
		}, "not-supported-by-gpu"},
	} {
		t.Run(name, func(t *testing.T) {
			n := newSettingsHost(t, binary, tc.profile, "kubepods/pod1")
			if tc.prepare != nil {
				if err := tc.prepare(n); err != nil {
					t.Fatal(err)
				}
			}
			n.start(t)
			n.awaitLimits(t, tc.want)
			if r := n.call(t, "limit", n.uuid(0), pod, 1<<30); !r.Unsupported {
				t.Errorf("%+v, want an unsupported call", r)
			}
		})
	}
	t.Run("cgroups", func(t *testing.T) {
		n := newSettingsHost(t, binary, h100With(limitDriver))
		n.start(t)
		n.awaitLimits(t, "no-pod-cgroups")
		n.addCgroup(t, "kubepods.slice") // the kubelet starts
		n.awaitLimits(t, "supported")
		if err := os.Remove(filepath.Join(n.root, cgroupDir, "cgroup.controllers")); err != nil {
			t.Fatal(err)
		}
		n.awaitLimits(t, "cgroup-v1")
	})
}

// memoryLimitFails simulates a driver in which a call fails, has no effect, crashes or hangs.
func memoryLimitFails(t *testing.T, binary string) {
	n := newSettingsHost(t, binary, h100With(limitDriver), "kubepods/pod1")
	n.start(t)
	n.awaitLimits(t, "supported")
	set := func() result { t.Helper(); return n.call(t, "limit", n.uuid(2), pod, 1<<30) }
	fails := func(f simdriver.Fault, want string) {
		t.Helper()
		for len(n.failed) > 0 {
			t.Errorf("an unexpected failure of %s was reported", <-n.failed)
		}
		f.GPU, f.Func = n.uuid(2), "nvmlDeviceSetMemoryLimits_v1"
		if err := n.driver.InjectFault(f); err != nil {
			t.Fatal(err)
		}
		if r := set(); !strings.Contains(r.Error, want) {
			t.Errorf("%+v, want %q", r, want)
		}
		if err := n.driver.ClearFaults(); err != nil {
			t.Fatal(err)
		}
	}
	fails(simdriver.Fault{Return: 998}, "setting the memory limit of cgroup "+pod)
	fails(simdriver.Fault{Answers: true, Answer: "ignored"}, fmt.Sprintf("the driver reports %d afterwards", uint64(unlimited)))
	fails(simdriver.Fault{Crash: true}, "the driver worker ended before it replied")
	n.awaitFailure(t, n.uuid(2))
	for start := time.Now(); set().Error != ""; time.Sleep(100 * time.Millisecond) {
		if time.Since(start) > wait {
			t.Fatalf("GPU not usable after the crash: %+v", set())
		}
	}
	fails(simdriver.Fault{Hang: time.Hour}, "the driver worker ended before it replied")
	n.awaitFailure(t, n.uuid(2))
	for start := time.Now(); ; time.Sleep(100 * time.Millisecond) {
		r := n.call(t, "limit", n.uuid(0), pod, 1<<30) // of another GPU
		if r.Error == "" {
			break
		}
		if time.Since(start) > wait {
			t.Fatalf("another GPU is not usable after the hang: %+v", r)
		}
	}
}

func computeMode(t *testing.T, binary string) {
	n := newSettingsHost(t, binary, h100With(limitDriver), "kubepods")
	n.start(t)
	n.awaitLimits(t, "supported")
	for _, mode := range []string{"Exclusive_Process", "Prohibited", "Default"} {
		if r := n.call(t, "mode", n.uuid(1), mode); r.Error != "" {
			t.Fatal(r.Error)
		}
		if r := n.call(t, "mode", n.uuid(1)); r.Mode != mode || r.Error != "" {
			t.Errorf("%+v, want %s", r, mode)
		}
		if r := n.call(t, "mode", n.uuid(0)); r.Mode != "Default" || r.Error != "" {
			t.Errorf("another GPU: %+v", r)
		}
	}
	if r := n.call(t, "mode", n.uuid(1), "Shared"); !strings.Contains(r.Error, `unknown compute mode "Shared"`) {
		t.Errorf("unknown mode: %+v", r)
	}
}
