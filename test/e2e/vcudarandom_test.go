package e2e

import (
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	core "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/gpucdi/gpucdi/test/simdriver"
)

// vcudaRandom creates 100 pairs of pods, both of the same size and at the same time, with parts of five sizes or whole
// GPUs, and removes them in random order, on eight GPUs of each of two models. At no time are more cores or memory of a GPU
// allocated than it has, no pod fails, and the memory limit of each running pod is its own; pods with whole GPUs have
// none. config shares all GPUs.
func vcudaRandom(t *testing.T, c *cluster, config string) {
	l40s := addL40S(t, c)
	c.configure(t, config)
	c.awaitSlices(t, 16)
	c.awaitGPUs(t, "0") // until then the kubelet would reject pods that request nvidia.com/gpu
	const total, concurrent, batch = 200, 40, 8
	sizes := []vcudaSize{{vcuda(10, 2000), 2000, true}, {vcuda(20, 4000), 4000, false}, {vcuda(30, 8000), 8000, false}, {vcuda(50, 10000), 10000, true},
		{vcuda(70, 20000), 20000, false}, {vcuda(100, 0), 0, false}, {"nvidia.com/gpu: 1", 0, false}}
	r := vcudaRun{cluster: c, memory: map[string]int{}, used: map[string]bool{}}
	random := rand.New(rand.NewPCG(1, 2))
	defer r.removeAll(t)
	lastChange := time.Now()
	for created := 0; created < total || len(r.memory) > 0; {
		running, starting := r.check(t)
		if time.Since(lastChange) > timeout {
			t.Fatalf("%d pods have been starting for %s, while %d run", starting, timeout, len(running))
		}
		full := len(r.memory) >= concurrent || created == total
		if starting >= batch || full && len(running) == 0 {
			time.Sleep(time.Second) // more pods, or more checks, would take the CPU time that the others need to start
			continue
		}
		lastChange = time.Now()
		if full {
			random.Shuffle(len(running), func(i, j int) { running[i], running[j] = running[j], running[i] })
			r.remove(t, running[:min(len(running), batch)])
		}
		var manifests []string
		for created < total && len(manifests) < batch && len(r.memory) < concurrent {
			size := sizes[random.IntN(len(sizes))]
			for range 2 {
				name := fmt.Sprint("random-", created)
				created++
				r.memory[name] = size.mib
				manifests = append(manifests, size.pod(name))
			}
		}
		if len(manifests) > 0 {
			if err := c.Apply(t.Context(), []byte(strings.Join(manifests, "\n---\n"))); err != nil {
				t.Fatal(err)
			}
		}
	}
	t.Logf("%d limits of running pods checked", r.checked)
	if events := c.kubectl(t, "get", "events", "-o", "jsonpath={.items[*].reason}"); strings.Contains(events, "UnexpectedAdmissionError") {
		t.Error("a pod was rejected after it was bound")
	}
	models := map[bool]bool{}
	for device := range r.used {
		models[slices.Contains(l40s, device)] = true
	}
	if len(models) != 2 {
		t.Errorf("pods used only the GPUs %v", slices.Sorted(maps.Keys(r.used)))
	}
}

// vcudaSize is the request of a container, and its memory limit in MiB; 0: none. hasInit is set for pods with an init
// container that has the same request, and therefore the same claim.
type vcudaSize struct {
	limits  string
	mib     int
	hasInit bool
}

func (s vcudaSize) pod(name string) string {
	containers := [][2]string{{"init", s.limits}, {"main", s.limits}}
	if !s.hasInit {
		containers = containers[1:]
	}
	return vcudaPod("name: "+name, "", containers...)
}

// addL40S adds eight L40S to the node until the test ends. It returns the names of their devices.
func addL40S(t *testing.T, c *cluster) (devices []string) {
	for i := range 8 {
		g := simdriver.PCIe4().GPUs[0]
		g.UUID = fmt.Sprintf("%s%02x", g.UUID[:len(g.UUID)-2], i)
		g.BusID, g.Minor = fmt.Sprintf("00000000:%02X:00.0", 0xE0+i), 8+i
		if err := c.driver.Add(g); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if _, err := c.driver.Remove(g.UUID); err != nil {
				t.Error(err)
			}
		})
		devices = append(devices, strings.ToLower(g.UUID))
	}
	return devices
}

// vcudaRun is the state of vcudaRandom.
type vcudaRun struct {
	*cluster
	memory  map[string]int  // MiB of the pods that exist, by name
	used    map[string]bool // names of devices that claims had
	checked int             // limits
}

// check checks all pods and claims. It returns the names of the running pods, and the number of pods that have a node and
// do not run yet.
func (r *vcudaRun) check(t *testing.T) (running []string, starting int) {
	t.Helper()
	var pods core.PodList
	r.get(t, &pods, "pods")
	devices := r.checkClaims(t)
	limits, err := r.driver.MemoryLimits()
	if err != nil {
		t.Fatal(err)
	}
	for _, pod := range pods.Items {
		want, ours := r.memory[pod.Name]
		switch {
		case !ours || pod.DeletionTimestamp != nil:
		case pod.Status.Phase == core.PodRunning:
			running = append(running, pod.Name)
			r.checked++
			wanted := map[string]uint64{}
			if want > 0 {
				wanted[devices[pod.Name]] = uint64(want) << 20
			}
			if got := limitsOf(limits, string(pod.UID)); !maps.Equal(got, wanted) {
				t.Errorf("pod %s has the limits %v bytes, want %v", pod.Name, got, wanted)
			}
		case pod.Status.Phase != core.PodPending:
			t.Fatalf("pod %s: %s, %s", pod.Name, pod.Status.Phase, pod.Status.Message)
		case pod.Spec.NodeName != "":
			starting++
		}
	}
	return running, starting
}

// limitsOf returns the limits of a pod's cgroup in bytes, by the names of the GPUs in the slice.
func limitsOf(limits []simdriver.MemoryLimit, podUID string) map[string]uint64 {
	bytes := map[string]uint64{}
	for _, l := range limits {
		if strings.HasSuffix(strings.ReplaceAll(strings.TrimSuffix(l.Cgroup, ".slice"), "_", "-"), "pod"+podUID) {
			bytes[strings.ToLower(l.GPU)] = l.Bytes
		}
	}
	return bytes
}

// checkClaims checks that no device has less capacity than is allocated. It returns the devices by pod.
func (r *vcudaRun) checkClaims(t *testing.T) (devices map[string]string) {
	t.Helper()
	var claims resourceapi.ResourceClaimList
	r.get(t, &claims, "resourceclaims")
	var slices resourceapi.ResourceSliceList
	r.get(t, &slices, "resourceslices")
	free := map[string]map[resourceapi.QualifiedName]resource.Quantity{}
	for _, s := range slices.Items {
		for _, d := range s.Spec.Devices {
			free[d.Name] = map[resourceapi.QualifiedName]resource.Quantity{}
			for name, capacity := range d.Capacity {
				free[d.Name][name] = capacity.Value
			}
		}
	}
	devices = map[string]string{}
	for _, claim := range claims.Items {
		if claim.Status.Allocation == nil {
			continue
		}
		for _, pod := range claim.Status.ReservedFor {
			devices[pod.Name] = claim.Status.Allocation.Devices.Results[0].Device
		}
		for _, result := range claim.Status.Allocation.Devices.Results {
			r.used[result.Device] = true
			for name, consumed := range result.ConsumedCapacity {
				left := free[result.Device][name]
				left.Sub(consumed)
				if free[result.Device] == nil || left.Sign() < 0 {
					t.Errorf("device %s has %s of %s less than is allocated", result.Device, left.String(), name)
				} else {
					free[result.Device][name] = left
				}
			}
		}
	}
	return devices
}

// get reads all objects of a kind.
func (r *vcudaRun) get(t *testing.T, list any, kind string) {
	t.Helper()
	if err := json.Unmarshal([]byte(r.kubectl(t, "get", kind, "-o", "json")), list); err != nil {
		t.Fatal(err)
	}
}

func (r *vcudaRun) remove(t *testing.T, pods []string) {
	t.Helper()
	if len(pods) == 0 {
		return
	}
	r.kubectl(t, append([]string{"delete", "pod", "--wait=false"}, pods...)...)
	for _, name := range pods {
		delete(r.memory, name)
	}
}

// removeAll removes the pods that are left, and waits until all have ended.
func (r *vcudaRun) removeAll(t *testing.T) {
	r.remove(t, slices.Collect(maps.Keys(r.memory)))
	await(t, "no pods", func() (string, bool) {
		out := r.kubectl(t, "get", "pods", "-o", "name")
		return out, !strings.Contains(out, "random-")
	})
}
