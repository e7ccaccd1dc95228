package devicemanager

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/gpucdi/gpucdi/test/simdriver"
)

// What a driver reports of one GPU cannot be right. The others are served, and all are when it is
// right again.
func TestAnswersThatCannotBeRight(t *testing.T) {
	other := func(g simdriver.GPU) string { return g.UUID }
	for _, tc := range []struct {
		name, function    string
		answer            func(other simdriver.GPU) string
		capacity, healthy int64
		fault             string
		sick              []int
	}{
		{"an empty UUID", "nvmlDeviceGetUUID", func(simdriver.GPU) string { return "" }, 7, 7, "cannot name a device", []int{5}},
		{"a path as UUID", "nvmlDeviceGetUUID", func(simdriver.GPU) string { return "GPU-../../etc" }, 7, 7, "cannot name a device", []int{5}},
		{"another GPU's UUID", "nvmlDeviceGetUUID", other, 6, 6, "is that of 2 devices", []int{2, 5}},
		{"another GPU's minor number", "nvmlDeviceGetMinorNumber", func(g simdriver.GPU) string { return fmt.Sprint(g.Minor) }, 8, 6, "is that of 2 GPUs", []int{2, 5}},
		{"a huge minor number", "nvmlDeviceGetMinorNumber", func(simdriver.GPU) string { return "4294967295" }, 8, 7, "minor number 4294967295", []int{5}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			n := newNode(t, simdriver.H100x8())
			gpus := n.driver.State().GPUs
			fault := simdriver.Fault{GPU: gpus[5].UUID, Func: tc.function, Answers: true, Answer: tc.answer(gpus[2])}
			if err := n.driver.Break(fault); err != nil {
				t.Fatal(err)
			}
			k := startKubelet(t, n.kubeletDir, 2)
			n.startAgent(t)
			k.counts(t, tc.capacity, tc.healthy)
			n.awaitGet(t, "/metrics", http.StatusOK)
			if text := n.get(t, "/status"); !strings.Contains(text, tc.fault) {
				t.Errorf("the status does not say %q", tc.fault)
			}
			pod, given := n.admitted(t, k, "pod", int(tc.healthy))
			for _, i := range tc.sick {
				if slices.Contains(given, gpus[i].UUID) {
					t.Errorf("a pod is given GPU %d", i)
				}
			}
			k.forget(pod)
			if err := n.driver.Mend(); err != nil {
				t.Fatal(err)
			}
			k.counts(t, 8, 8)
			n.admitted(t, k, "after", 8)
		})
	}
}
