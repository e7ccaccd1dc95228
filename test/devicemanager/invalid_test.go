package devicemanager

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/gpucdi/gpucdi/test/simdriver"
)

// A GPU for which NVML returns an invalid value is not allocatable, nor is another GPU with the same value. All other
// GPUs are allocatable. Once the value is valid, all GPUs are.
func TestInvalidNVMLValues(t *testing.T) {
	t.Parallel()
	otherUUID := func(g simdriver.GPU) string { return g.UUID }
	for _, tc := range []struct {
		name, function    string
		value             func(other simdriver.GPU) string
		capacity, healthy int64
		fault             string // in the status
		faulty            []int  // GPU indexes
	}{
		{"an empty UUID", "nvmlDeviceGetUUID", func(simdriver.GPU) string { return "" }, 7, 7, "is not a valid device name", []int{5}},
		{"a path as UUID", "nvmlDeviceGetUUID", func(simdriver.GPU) string { return "GPU-../../etc" }, 7, 7, "is not a valid device name", []int{5}},
		{"another GPU's UUID", "nvmlDeviceGetUUID", otherUUID, 6, 6, "is not unique, 2 devices have it", []int{2, 5}},
		{"another GPU's minor number", "nvmlDeviceGetMinorNumber", func(g simdriver.GPU) string { return fmt.Sprint(g.Minor) }, 8, 6, "is not unique, 2 GPUs have it", []int{2, 5}},
		{"a huge minor number", "nvmlDeviceGetMinorNumber", func(simdriver.GPU) string { return "4294967295" }, 8, 7, "minor number 4294967295", []int{5}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			n := newNode(t, simdriver.H100x8())
			gpus := n.driver.State().GPUs
			fault := simdriver.Fault{GPU: gpus[5].UUID, Func: tc.function, Answers: true, Answer: tc.value(gpus[2])}
			if err := n.driver.InjectFault(fault); err != nil {
				t.Fatal(err)
			}
			k := startKubelet(t, n.kubeletDir, 2)
			n.startAgent(t)
			k.awaitGPUs(t, tc.capacity, tc.healthy)
			n.awaitStatus(t, func(nodeStatus) bool { return strings.Contains(n.get(t, "/status"), tc.fault) })
			pod, allocated := n.admitPod(t, k, "pod", int(tc.healthy))
			for _, i := range tc.faulty {
				if slices.Contains(allocated, gpus[i].UUID) {
					t.Errorf("the faulty GPU %d was allocated", i)
				}
			}
			k.removePod(pod)
			if err := n.driver.ClearFaults(); err != nil {
				t.Fatal(err)
			}
			k.awaitGPUs(t, 8, 8)
			n.admitPod(t, k, "after", 8)
		})
	}
}
