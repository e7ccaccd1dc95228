package kubelet

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	api "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/gpucdi/gpucdi/allocator"
	"github.com/gpucdi/gpucdi/gpu"
)

// limitedOffer returns an Offer of a GPU with two replicas that have memory limits.
func limitedOffer() Offer {
	inv := &gpu.Inventory{GPUs: []gpu.GPU{{UUID: uuid(0), NUMANode: gpu.NUMAUnknown, MemoryLimits: gpu.MemoryLimitsSupported, MemoryBytes: 80 << 30}}}
	rules := allocator.Rules{{Name: allocator.GPUResource, Replicas: 2, Limits: allocator.LimitMemory}}
	return Offer{Resource: allocator.Plan(inv, cdiKind, allocator.Policy{MIG: allocator.MIGNone, Rules: rules})[0], PassBy: bothWays}
}

// entry returns the JSON object of a container in the kubelet's checkpoint.
func entry(pod, container, resource string, ids ...string) string {
	return fmt.Sprintf(`{"PodUID":%q,"ContainerName":%q,"ResourceName":%q,"DeviceIDs":{"-1":["%s"]},"AllocResp":""}`,
		pod, container, resource, strings.Join(ids, `","`))
}

func writeCheckpoint(t *testing.T, dir string, entries ...string) {
	t.Helper()
	text := `{"Data":{"PodDeviceEntries":[` + strings.Join(entries, ",") + `],"RegisteredDevices":{}},"Checksum":1}`
	if err := os.WriteFile(filepath.Join(dir, checkpointName+".new"), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(filepath.Join(dir, checkpointName+".new"), filepath.Join(dir, checkpointName)); err != nil {
		t.Fatal(err)
	}
}

// Before the plugin lists the first limited device, it registers again, so that the kubelet calls PreStartContainer. It
// also registers again when there are no limited devices any more.
func TestPreStartRequired(t *testing.T) {
	dir := t.TempDir()
	kubelet := newFakeKubelet(t, dir).start()
	p, _ := start(t, dir)
	r := kubelet.next()
	checkRegistration(t, r)
	for range 2 {
		previous := r
		p.Update(limitedOffer())
		if lists := previous.awaitEnd(t); len(lists) > 0 {
			t.Errorf("limited devices were listed before: %v", lists)
		}
		r = kubelet.next()
		if !r.options.PreStartRequired || !r.request.Options.PreStartRequired {
			t.Errorf("options %v, in the registration %v; want PreStartRequired", r.options, r.request.Options)
		}
		if list := receive(t, r.lists, "the replicas"); len(list.Devices) != 2 {
			t.Errorf("list %v, want 2 replicas", list)
		}
		p.Update(offer(bothWays))
		r.awaitEnd(t)
		r = kubelet.next()
		if r.options.PreStartRequired {
			t.Errorf("options %v without limited devices", r.options)
		}
		checkRegistration(t, r)
	}
}

// A registration before the first list requires calls to PreStartContainer if the resource may have limited devices,
// and is kept if the list has some.
func TestPreStartRequiredBeforeFirstList(t *testing.T) {
	dir := t.TempDir()
	kubelet := newFakeKubelet(t, dir).start()
	cfg := testConfig(dir)
	cfg.Limiting = true
	p := New(cfg, testLog(t))
	runPlugin(t, p)
	r := kubelet.next()
	if !r.options.PreStartRequired {
		t.Errorf("options %v, want PreStartRequired", r.options)
	}
	p.Update(limitedOffer())
	if list := receive(t, r.lists, "the replicas"); len(list.Devices) != 2 {
		t.Errorf("list %v, want 2 replicas", list)
	}
}

// PreStartContainer passes all devices of the pod to PreStart. It fails if the kubelet's checkpoint does not identify
// the pod.
func TestPreStartContainer(t *testing.T) {
	const other = "example.com/nic"
	first, second := uuid(0)+"::0", uuid(0)+"::1"
	for name, tc := range map[string]struct {
		entries []string
		ids     []string
		want    string // the pod and its devices, or part of the error
	}{
		"one container":   {[]string{entry("a", "main", allocator.GPUResource, first)}, []string{first}, "a [GPU 0]"},
		"another pod":     {[]string{entry("a", "main", allocator.GPUResource, first), entry("b", "main", allocator.GPUResource, second)}, []string{second}, "b [GPU 1]"},
		"two containers":  {[]string{entry("a", "x", allocator.GPUResource, first), entry("a", "y", allocator.GPUResource, second)}, []string{second}, "a [GPU 0 GPU 1]"},
		"init container":  {[]string{entry("a", "init", allocator.GPUResource, first), entry("a", "main", allocator.GPUResource, first)}, []string{first}, "a [GPU 0]"},
		"other resources": {[]string{entry("a", "main", allocator.GPUResource, first), entry("a", "main", other, "nic-1")}, []string{first}, "a [GPU 0 nic-1]"},
		"no pod":          {[]string{entry("a", "main", other, first)}, []string{first}, "found 0"},
		"two pods":        {[]string{entry("a", "x", allocator.GPUResource, first), entry("b", "y", allocator.GPUResource, first)}, []string{first}, "found 2"},
		"only some IDs":   {[]string{entry("a", "x", allocator.GPUResource, first)}, []string{first, second}, "want one pod with all of them"},
		"refused":         {[]string{entry("refused", "main", allocator.GPUResource, first)}, []string{first}, "the driver refuses"},
	} {
		t.Run(name, func(t *testing.T) {
			r, p, pods := connectLimited(t)
			writeCheckpoint(t, p.cfg.Dir, tc.entries...)
			_, err := r.client.PreStartContainer(t.Context(), &api.PreStartContainerRequest{DevicesIds: tc.ids})
			if got := pods(); err == nil {
				if len(got) != 1 || got[0] != tc.want {
					t.Errorf("passed %q, want %q", got, tc.want)
				}
			} else if status.Code(err) != codes.FailedPrecondition || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("error %v, want %q", err, tc.want)
			}
		})
	}
}

// The kubelet admits pods while many containers wait for their limits.
func TestAllocateDuringPreStart(t *testing.T) {
	const waiting = 500
	r, p, _ := connectLimited(t)
	first, second := uuid(0)+"::0", uuid(0)+"::1"
	writeCheckpoint(t, p.cfg.Dir, entry("slow", "main", allocator.GPUResource, first))
	waits, cancel := context.WithCancel(t.Context())
	var calls sync.WaitGroup
	defer calls.Wait()
	defer cancel()
	for range waiting {
		calls.Go(func() {
			_, _ = r.client.PreStartContainer(waits, &api.PreStartContainerRequest{DevicesIds: []string{first}}) // canceled
		})
	}
	time.Sleep(100 * time.Millisecond) // most calls are in progress then; the more, the stricter is the test
	ctx, timeout := context.WithTimeout(t.Context(), testTimeout)
	defer timeout()
	_, err := r.client.Allocate(ctx, &api.AllocateRequest{ContainerRequests: []*api.ContainerAllocateRequest{{DevicesIds: []string{second}}}})
	if err != nil {
		t.Error(err)
	}
}

// If the checkpoint was deleted or is damaged, PreStartContainer sends a list, which makes the kubelet rewrite it.
func TestPreStartContainerWithoutCheckpoint(t *testing.T) {
	for name, text := range map[string]string{"deleted": "", "damaged": "{"} {
		t.Run(name, func(t *testing.T) {
			r, p, pods := connectLimited(t)
			if text != "" {
				if err := os.WriteFile(filepath.Join(p.cfg.Dir, checkpointName), []byte(text), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			id := uuid(0) + "::1"
			go func() {
				for range r.lists {
					writeCheckpoint(t, p.cfg.Dir, entry("a", "main", allocator.GPUResource, id))
				}
			}()
			if _, err := r.client.PreStartContainer(t.Context(), &api.PreStartContainerRequest{DevicesIds: []string{id}}); err != nil {
				t.Fatal(err)
			}
			if got := pods(); !slices.Equal(got, []string{"a [GPU 1]"}) {
				t.Errorf("passed %q", got)
			}
		})
	}
}

// connectLimited is like connect, with limited replicas. pods returns the pods that were passed to PreStart.
func connectLimited(t *testing.T) (r registration, p *Plugin, pods func() []string) {
	t.Helper()
	dir := t.TempDir()
	kubelet := newFakeKubelet(t, dir).start()
	var mu sync.Mutex
	var passed []string
	cfg := testConfig(dir)
	cfg.PreStart = func(ctx context.Context, resource string, pod Pod) error {
		if pod.UID == "slow" {
			<-ctx.Done()
			return ctx.Err()
		}
		if resource != allocator.GPUResource || pod.UID == "refused" {
			return errors.New("the driver refuses")
		}
		var devices []string
		for _, key := range pod.Devices {
			devices = append(devices, strings.ReplaceAll(key.ID, uuid(0)+"::", "GPU "))
		}
		slices.Sort(devices)
		mu.Lock()
		defer mu.Unlock()
		passed = append(passed, fmt.Sprintf("%s %v", pod.UID, devices))
		return nil
	}
	p = New(cfg, testLog(t))
	p.Update(limitedOffer())
	runPlugin(t, p)
	r = kubelet.next()
	receive(t, r.lists, "the replicas")
	return r, p, func() []string { mu.Lock(); defer mu.Unlock(); return passed }
}
