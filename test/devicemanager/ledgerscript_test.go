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

// ledgerScripts are sequences of actions of the ledger's model (allocator/actions_test.go) for a real device manager
// and a real agent on a node with two GPUs. They are counterexamples to simpler rules for the release of devices.
//
// These actions are not in the model or differ from it: await waits until the kubelet has the allocatable devices; file
// checks the allocated devices in the kubelet's checkpoint; pass waits for probes, during which the allocatable devices
// must not change; lose removes the saved state; stop and start apply to the agent or to the container of a pod.
//
// GPUs are written as 0 and 1, the replicas of GPU 0 as 0::0 and 0::1, and MIG devices as GPU/GPU instance, such as
// 0/7.
var ledgerScripts = []struct {
	name, script string
	list         string // allocatable devices of each resource after the script
	file         string // allocated devices of each pod in the kubelet's checkpoint after the script
	rejected     string // rejected pods; all others are admitted
}{
	{
		name:     "an unallocated GPU moves immediately",
		script:   `create a gpu; configure shared; await gpu.shared 1::0 1::1; create b gpu; create c gpu.shared`,
		list:     "gpu.shared 1::0 1::1",
		file:     "a gpu 0, c gpu.shared 1::0",
		rejected: "b",
	},
	{
		name: "an allocated GPU moves after its pod has ended",
		script: `create a gpu; start a; configure replicas; await gpu 1::0 1::1; pass; end a;
			await gpu 0::0 0::1 1::0 1::1; create b gpu; create c gpu; create d gpu; create e gpu; create f gpu`,
		list:     "gpu 0::0 0::1 1::0 1::1",
		file:     "b gpu 0::0, c gpu 1::0, d gpu 0::1, e gpu 1::1",
		rejected: "f",
	},
	{
		name:   "an init container holds its GPU",
		script: `create init a gpu; configure shared; await gpu.shared 1::0 1::1; pass`,
		list:   "gpu.shared 1::0 1::1",
		file:   "a gpu 0",
	},
	{
		name:   "the last pod has ended and no allocation follows",
		script: `create a gpu; end a; file a gpu 0; configure shared`,
		list:   "gpu.shared 0::0 0::1 1::0 1::1",
		file:   "",
	},
	{
		name: "a force-deleted pod keeps running",
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
		name: "shared and back while allocated",
		script: `create a gpu; configure shared; await gpu.shared 1::0 1::1; configure whole; await gpu 0 1;
			create b gpu; create c gpu; create d gpu.shared`,
		list:     "gpu 0 1",
		file:     "a gpu 0, b gpu 1",
		rejected: "c d",
	},
	{
		name: "the agent restarts without saved state",
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
		name: "kubelet and agent restart without a record of a running container",
		script: `create a gpu; start a; configure shared; await gpu.shared 1::0 1::1; force a; create b gpu.shared;
			file b gpu.shared 1::0; stop agent; lose state; restart kubelet; start agent; await gpu.shared 1::0 1::1;
			pass; stop a`,
		list: "gpu.shared 0::0 0::1 1::0 1::1",
		file: "b gpu.shared 1::0",
	},
	{
		name: "withdrawn and advertised again",
		script: `configure shared; await gpu.shared 0::0 0::1 1::0 1::1; configure whole; await gpu 0 1; create a gpu;
			configure shared; await gpu.shared 1::0 1::1; create b gpu.shared; create c gpu`,
		list:     "gpu.shared 1::0 1::1",
		file:     "a gpu 0, b gpu.shared 1::0",
		rejected: "c",
	},
}

func TestLedgerScripts(t *testing.T) {
	t.Parallel()
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

// ledgerWorld is a node with its kubelet and pods.
type ledgerWorld struct {
	*testing.T
	n        *node
	k        *kubelet
	pods     map[string]*v1.Pod
	rejected []string
	names    map[string]string // of GPUs and MIG devices in scripts, by UUID
}

func newLedgerWorld(t *testing.T) *ledgerWorld {
	t.Helper()
	profile := simdriver.A100MIG()
	profile.GPUs = profile.GPUs[5:7] // not in MIG mode
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
	"whole":    {patient, "mig: {strategy: mixed}"},
	"replicas": {patient, "mig: {strategy: mixed}", twoReplicas},
	"shared":   {patient, "mig: {strategy: mixed}", "resources: [{name: nvidia.com/gpu, replicas: 2, rename: nvidia.com/gpu.shared}]"},
}

// do executes one step of a script.
func (w *ledgerWorld) do(step []string) {
	w.Helper()
	switch rest := step[1:]; step[0] {
	case "create":
		w.create(rest)
	case "start":
		w.start(rest[0])
	case "end":
		w.k.removePod(w.pods[rest[0]])
		w.n.runtime.removePod(w.pods[rest[0]])
	case "force": // the container keeps running
		w.k.removePod(w.pods[rest[0]])
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
	case "file":
		w.await("file", w.file, strings.Join(rest, " "))
	case "await":
		w.await("list", w.list, strings.Join(rest, " "))
	case "pass":
		w.pass()
	default:
		w.Fatalf("unknown action %q", step[0])
	}
}

// create admits a pod with one container, such as "a gpu", or with one init container, such as "init a gpu".
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

// start starts the agent or the container of a pod.
func (w *ledgerWorld) start(name string) {
	w.Helper()
	if name == "agent" {
		w.n.startAgent(w.T)
		return
	}
	r, err := w.k.start(w.Context(), w.pods[name])
	if err != nil {
		w.Fatal(err)
	}
	w.n.runtime.startContainer(w.pods[name], r.cdiDevices...)
}

// stop stops the agent or the container of a pod.
func (w *ledgerWorld) stop(name string) {
	w.Helper()
	if name == "agent" {
		w.n.stopAgent(w.T)
		return
	}
	w.n.runtime.removePod(w.pods[name])
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

// pass waits for 17 probes, one a second, and checks that the list does not change. In this time, the agent would
// release a device that no pod holds.
func (w *ledgerWorld) pass() {
	w.Helper()
	const wait, probes = "nvmlEventSetWait_v2", 17
	before := w.list()
	for until := w.n.nvmlCallCounts(w.T)[wait] + probes; w.n.nvmlCallCounts(w.T)[wait] < until; time.Sleep(10 * time.Millisecond) {
		if now := w.list(); now != before {
			w.Fatalf("list: %q, want %q", now, before)
		}
	}
}

func (w *ledgerWorld) await(what string, got func() string, want string) {
	w.Helper()
	for start := time.Now(); got() != want; time.Sleep(10 * time.Millisecond) {
		if time.Since(start) > timeout {
			w.Fatalf("%s: %q, want %q", what, got(), want)
		}
	}
}

// list returns the allocatable devices by resource, in the format of the scripts.
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

// checkHeld checks that allocated devices are advertised, healthy or not: the kubelet panics if it records an
// allocation of a device that is not advertised.
func (w *ledgerWorld) checkHeld() {
	w.Helper()
	healthy := w.k.allocatable()
	minCapacity := map[string]int64{}
	for resource, devices := range healthy {
		minCapacity[resource] = int64(len(devices))
	}
	for _, pod := range w.k.activePods() {
		for _, c := range slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers) {
			for resource, devices := range w.k.GetDevices(string(pod.UID), c.Name) {
				for id := range devices {
					if _, ok := healthy[resource][id]; !ok {
						minCapacity[resource]++
					}
				}
			}
		}
	}
	capacity, _ := w.k.capacity()
	for resource, want := range minCapacity {
		if got := capacity[v1.ResourceName(resource)]; got.Value() < want {
			w.Errorf("got capacity %d of %s, want at least the %d allocatable and allocated devices", got.Value(), resource, want)
		}
	}
}

// file returns the allocated devices in the kubelet's checkpoint by pod, in the format of the scripts.
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

// describe formats devices of a resource as the scripts do.
func (w *ledgerWorld) describe(resource string, ids []string) string {
	for i, id := range ids {
		uuid, _, _ := strings.Cut(id, "::")
		ids[i] = strings.Replace(id, uuid, w.names[uuid], 1)
	}
	slices.Sort(ids)
	return strings.TrimPrefix(resource, "nvidia.com/") + " " + strings.Join(ids, " ")
}
