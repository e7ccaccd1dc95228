package devicemanager

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/gpucdi/gpucdi/test/simdriver"
)

// ledgerScripts are sequences of actions of the ledger's model (allocator/actions_test.go), as far as a real
// device manager and a real agent can follow them, on a node with two GPUs. They are counterexamples to
// simpler rules of when a device is free.
//
// GPUs are called 0 and 1, their replicas 0::0 and 0::1, and MIG devices by GPU and GPU instance, as 0/7.
var ledgerScripts = []struct {
	name, script string
	list         string // the healthy devices of each resource
	file         string // what the kubelet's checkpoint names, by pod
	rejected     string // pods; all others are admitted
}{
	{
		name:     "an idle GPU moves at once",
		script:   `create a gpu; configure shared; await gpu.shared 1::0 1::1; create b gpu; create c gpu.shared`,
		list:     "gpu.shared 1::0 1::1",
		file:     "a gpu 0, c gpu.shared 1::0",
		rejected: "b",
	},
	{
		name: "a held GPU moves after the end of its pod",
		script: `create a gpu; start a; configure replicas; await gpu 1::0 1::1; pass; end a;
			await gpu 0::0 0::1 1::0 1::1; create b gpu; create c gpu; create d gpu; create e gpu; create f gpu`,
		list:     "gpu 0::0 0::1 1::0 1::1",
		file:     "b gpu 0::0, c gpu 1::0, d gpu 0::1, e gpu 1::1",
		rejected: "f",
	},
	{
		name:   "an init container holds",
		script: `create init a gpu; configure shared; await gpu.shared 1::0 1::1; pass`,
		list:   "gpu.shared 1::0 1::1",
		file:   "a gpu 0",
	},
	{
		name:   "the last pod has ended and nobody allocates any more",
		script: `create a gpu; end a; file a gpu 0; configure shared`,
		list:   "gpu.shared 0::0 0::1 1::0 1::1",
		file:   "",
	},
	{
		name: "a force-deleted pod runs on",
		script: `create a gpu; start a; configure shared; await gpu.shared 1::0 1::1; force a; create b gpu.shared;
			file b gpu.shared 1::0; pass; create c gpu.shared; create d gpu.shared; stop a`,
		list:     "gpu.shared 0::0 0::1 1::0 1::1",
		file:     "b gpu.shared 1::0, c gpu.shared 1::1",
		rejected: "d",
	},
	{
		name: "repartitioned twice",
		script: `partition 0 2g.10gb 1g.5gb; await gpu 1, mig-1g.5gb 0/7, mig-2g.10gb 0/3; create a mig-1g.5gb;
			partition 0 4g.20gb; await gpu 1; partition 0 2g.10gb 2g.10gb 1g.5gb+me; await gpu 1, mig-2g.10gb 0/3;
			create b mig-1g.5gb.me; end a`,
		list:     "gpu 1, mig-1g.5gb.me 0/7, mig-2g.10gb 0/3 0/4",
		file:     "",
		rejected: "b",
	},
	{
		name: "shared and back while held",
		script: `create a gpu; configure shared; await gpu.shared 1::0 1::1; configure whole; await gpu 0 1;
			create b gpu; create c gpu; create d gpu.shared`,
		list:     "gpu 0 1",
		file:     "a gpu 0, b gpu 1",
		rejected: "c d",
	},
	{
		name: "an agent without state",
		script: `create a gpu; start a; stop agent; lose state; configure replicas; start agent; await gpu 1::0 1::1;
			create b gpu; create c gpu; create d gpu`,
		list:     "gpu 1::0 1::1",
		file:     "a gpu 0, b gpu 1::0, c gpu 1::1",
		rejected: "d",
	},
	{
		name: "the kubelet restarts, then the agent",
		script: `create a gpu; configure shared; await gpu.shared 1::0 1::1; restart kubelet; stop agent; start agent;
			await gpu.shared 1::0 1::1; create b gpu`,
		list:     "gpu.shared 1::0 1::1",
		file:     "a gpu 0",
		rejected: "b",
	},
	{
		name: "a new kubelet and an agent without state find a container that no record names",
		script: `create a gpu; start a; configure shared; await gpu.shared 1::0 1::1; force a; create b gpu.shared;
			file b gpu.shared 1::0; stop agent; lose state; restart kubelet; start agent; await gpu.shared 1::0 1::1;
			pass; stop a`,
		list: "gpu.shared 0::0 0::1 1::0 1::1",
		file: "b gpu.shared 1::0",
	},
	{
		name: "not wanted and wanted again",
		script: `configure shared; await gpu.shared 0::0 0::1 1::0 1::1; configure whole; await gpu 0 1; create a gpu;
			configure shared; await gpu.shared 1::0 1::1; create b gpu.shared; create c gpu`,
		list:     "gpu.shared 1::0 1::1",
		file:     "a gpu 0, b gpu.shared 1::0",
		rejected: "c",
	},
}

func TestLedgerScripts(t *testing.T) {
	t.Parallel() // they mostly wait
	for _, tc := range ledgerScripts {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			w := newLedgerWorld(t)
			for step := range strings.SplitSeq(tc.script, ";") {
				t.Log(strings.TrimSpace(step))
				w.do(strings.Fields(step))
			}
			w.await("list", w.list, tc.list)
			w.await("file", w.file, tc.file)
			w.checkHeld()
			if got := strings.Join(w.rejected, " "); got != tc.rejected {
				t.Errorf("rejected: %q, want %q", got, tc.rejected)
			}
		})
	}
}

// ledgerWorld is a node, its kubelet and its pods.
type ledgerWorld struct {
	*testing.T
	n        *node
	k        *kubelet
	pods     map[string]*v1.Pod
	rejected []string
	names    map[string]string // of GPUs and MIG devices, by UUID
}

func newLedgerWorld(t *testing.T) *ledgerWorld {
	t.Helper()
	profile := simdriver.A100MIG()
	profile.GPUs = profile.GPUs[5:7] // whole ones
	n := newNode(t, profile)
	w := &ledgerWorld{T: t, n: n, pods: map[string]*v1.Pod{}, names: map[string]string{}}
	for i, uuid := range n.uuids() {
		w.names[uuid] = fmt.Sprint(i)
	}
	n.configure(t, ledgerConfigs["whole"]...)
	w.k = startKubelet(t, n.kubeletDir, 2)
	n.startAgent(t)
	w.await("list", w.list, "gpu 0 1")
	return w
}

var ledgerConfigs = map[string][]string{
	"whole":    {"mig: {strategy: mixed}"},
	"replicas": {"mig: {strategy: mixed}", sharedByTwo},
	"shared":   {"mig: {strategy: mixed}", "resources: [{name: nvidia.com/gpu, replicas: 2, rename: nvidia.com/gpu.shared}]"},
}

// do does one step of a script.
func (w *ledgerWorld) do(step []string) {
	w.Helper()
	switch rest := step[1:]; step[0] {
	case "create":
		w.create(rest)
	case "start":
		w.start(rest[0])
	case "end":
		w.k.forget(w.pods[rest[0]])
		w.n.runtime.end(w.pods[rest[0]])
	case "force": // the container runs on
		w.k.forget(w.pods[rest[0]])
	case "stop":
		w.stop(rest[0])
	case "lose":
		if err := os.RemoveAll(w.n.stateDir); err != nil {
			w.Fatal(err)
		}
	case "restart":
		w.k = w.k.restart(w.T, 2)
	case "configure":
		w.n.configure(w.T, ledgerConfigs[rest[0]]...)
	case "partition":
		w.partition(rest[0], rest[1:])
	case "file": // now
		if want, got := strings.Join(rest, " "), w.file(); got != want {
			w.Fatalf("file: %q, want %q", got, want)
		}
	case "await":
		w.await("list", w.list, strings.Join(rest, " "))
	case "pass":
		w.pass()
	default:
		w.Fatalf("no action is called %q", step[0])
	}
}

// create brings a pod of one container to the node: "a gpu", or "init a gpu" for an init container.
func (w *ledgerWorld) create(args []string) {
	w.Helper()
	init := args[0] == "init"
	if init {
		args = args[1:]
	}
	pod := podWith(args[0], v1.ResourceName("nvidia.com/"+args[1]), 1)
	if init {
		pod.Spec.InitContainers, pod.Spec.Containers = pod.Spec.Containers, []v1.Container{{Name: "app"}}
	}
	if err := w.k.admit(pod); err != nil {
		w.rejected = append(w.rejected, pod.Name)
		return
	}
	w.pods[pod.Name] = pod
}

// start starts the agent, or the container of a pod, which the runtime lists from then on.
func (w *ledgerWorld) start(what string) {
	w.Helper()
	if what == "agent" {
		w.n.startAgent(w.T)
		return
	}
	r, err := w.k.start(w.Context(), w.pods[what])
	if err != nil {
		w.Fatal(err)
	}
	w.n.runtime.run(w.pods[what], r.cdiDevices...)
}

func (w *ledgerWorld) stop(what string) {
	w.Helper()
	if what == "agent" {
		w.n.stopAgent(w.T)
		return
	}
	w.n.runtime.end(w.pods[what])
}

func (w *ledgerWorld) partition(gpu string, profiles []string) {
	w.Helper()
	for i, g := range w.n.driver.State().GPUs {
		if fmt.Sprint(i) != gpu {
			continue
		}
		if err := w.n.driver.Partition(g.UUID, profiles...); err != nil {
			w.Fatal(err)
		}
		for _, m := range w.n.driver.State().GPUs[i].MIG {
			w.names[m.UUID] = fmt.Sprintf("%d/%d", i, m.GPUInstance)
		}
	}
}

// pass lets the agent probe its GPUs, each second, as long as it would take to release what is not held. The
// list stays as it is meanwhile.
func (w *ledgerWorld) pass() {
	w.Helper()
	const wait, probes = "nvmlEventSetWait_v2", 17
	before := w.list()
	for until := w.n.counted(w.T)[wait] + probes; w.n.counted(w.T)[wait] < until; time.Sleep(10 * time.Millisecond) {
		if now := w.list(); now != before {
			w.Fatalf("list: %q, before %q", now, before)
		}
	}
}

func (w *ledgerWorld) await(what string, is func() string, want string) {
	w.Helper()
	for start := time.Now(); is() != want; time.Sleep(10 * time.Millisecond) {
		if time.Since(start) > patience {
			w.Fatalf("%s: %q, want %q", what, is(), want)
		}
	}
}

// list is what the kubelet can allocate, by resource.
func (w *ledgerWorld) list() string {
	var resources []string
	for resource, devices := range w.k.allocatable() {
		var ids []string
		for id := range devices {
			ids = append(ids, id)
		}
		if len(ids) > 0 {
			resources = append(resources, w.describe(resource, ids))
		}
	}
	slices.Sort(resources)
	return strings.Join(resources, ", ")
}

// checkHeld checks that what pods hold is listed, be it unhealthy: without that the kubelet panics as it records
// them.
func (w *ledgerWorld) checkHeld() {
	w.Helper()
	healthy := w.k.allocatable()
	least := map[string]int64{}
	for resource, devices := range healthy {
		least[resource] = int64(len(devices))
	}
	for _, pod := range w.k.activePods() {
		for _, c := range slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers) {
			for resource, devices := range w.k.GetDevices(string(pod.UID), c.Name) {
				for id := range devices {
					if _, is := healthy[resource][id]; !is {
						least[resource]++
					}
				}
			}
		}
	}
	listed, _ := w.k.capacity()
	for resource, least := range least {
		if count := listed[v1.ResourceName(resource)]; count.Value() < least {
			w.Errorf("%d devices of %s are listed, and %d are free or held", count.Value(), resource, least)
		}
	}
}

// file is what the kubelet's checkpoint names.
func (w *ledgerWorld) file() string {
	w.Helper()
	text, err := os.ReadFile(filepath.Join(w.n.kubeletDir, "device-plugins", "kubelet_internal_checkpoint"))
	if err != nil {
		w.Fatal(err)
	}
	var checkpoint struct {
		Data struct {
			PodDeviceEntries []struct {
				PodUID, ResourceName string
				DeviceIDs            map[int64][]string
			}
		}
	}
	if err := json.Unmarshal(text, &checkpoint); err != nil {
		w.Fatal(err)
	}
	var entries []string
	for _, e := range checkpoint.Data.PodDeviceEntries {
		var ids []string
		for _, numa := range e.DeviceIDs {
			ids = append(ids, numa...)
		}
		entries = append(entries, strings.TrimPrefix(e.PodUID, "uid-of-")+" "+w.describe(e.ResourceName, ids))
	}
	slices.Sort(entries)
	return strings.Join(entries, ", ")
}

// describe writes devices of a resource as the scripts do.
func (w *ledgerWorld) describe(resource string, ids []string) string {
	for i, id := range ids {
		uuid, _, _ := strings.Cut(id, "::")
		ids[i] = strings.Replace(id, uuid, w.names[uuid], 1)
	}
	slices.Sort(ids)
	return strings.TrimPrefix(resource, "nvidia.com/") + " " + strings.Join(ids, " ")
}
