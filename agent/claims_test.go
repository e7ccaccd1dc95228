package agent

import (
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gpucdi/gpucdi/allocator"
	"github.com/gpucdi/gpucdi/cluster"
	"github.com/gpucdi/gpucdi/dra"
	"github.com/gpucdi/gpucdi/gpu"
	"github.com/gpucdi/gpucdi/internal/host"
)

// If the API server does not store taints, faulty devices that could be allocated are not in the slices.
func TestOffersWithoutTaints(t *testing.T) {
	half := allocator.Amount{Cores: 50}
	fault := gpu.Fault{Code: "xid_79"}
	devices := []allocator.Device{
		{ID: "healthy", State: allocator.StateAvailable},
		{ID: "faulty", State: allocator.StateUnavailable, Fault: fault},
		{ID: "held", State: allocator.StateUnavailable, Fault: fault},
		{ID: "shared", State: allocator.StateUnavailable, Fault: fault, Capacity: half.Add(half)},
		{ID: "waiting", State: allocator.StateWaiting, Fault: fault},
	}
	held := map[string]allocator.Amount{"held": {}, "shared": half}
	for taints, want := range map[bool][]string{
		true:  {"healthy", "faulty", "held", "shared"},
		false: {"healthy", "held"},
	} {
		var got []string
		for _, o := range offersOf(devices, held, taints) {
			got = append(got, o.ID)
		}
		if !slices.Equal(got, want) {
			t.Errorf("taints %t: offers %v, want %v", taints, got, want)
		}
	}
}

// The slices are reordered once the devices of prepared claims have not changed for orderDelay, or immediately if shares
// are spread.
func TestOrderDelay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := &claims{gate: allocator.NewGate(time.Now), placement: allocator.Pack}
		inv := &gpu.Inventory{GPUs: []gpu.GPU{{UUID: "GPU-0"}, {UUID: "GPU-1", Index: 1}}}
		whole := allocator.Amount{Cores: allocator.WholeCores}
		want := func(first string, reorder time.Duration) {
			t.Helper()
			offers := c.order(inv, []dra.Offer{{ID: "GPU-0", Capacity: whole}, {ID: "GPU-1", Capacity: whole}})
			if offers[0].ID != first {
				t.Errorf("the first device is %s, want %s", offers[0].ID, first)
			}
			var at time.Time
			if reorder > 0 {
				at = time.Now().Add(reorder)
			}
			if got := c.reorderAt(); !got.Equal(at) {
				t.Errorf("reorders at %s, want %s", got, at)
			}
		}
		prepare := func(uid, id string, cores uint64) {
			c.gate.Restore(allocator.Claim{UID: uid, Devices: []string{id}, Amounts: map[string]allocator.Amount{id: {Cores: cores}}})
		}
		want("GPU-0", 0)
		prepare("a", "GPU-1", 20)
		want("GPU-0", orderDelay)
		time.Sleep(orderDelay - time.Second)
		want("GPU-0", time.Second)
		prepare("b", "GPU-1", 20)
		want("GPU-0", orderDelay)
		time.Sleep(orderDelay - 1)
		want("GPU-0", 1)
		time.Sleep(time.Nanosecond)
		want("GPU-1", 0)

		prepare("c", "GPU-0", 60)
		want("GPU-1", orderDelay)
		c.placement = allocator.Spread
		want("GPU-1", 0)
		prepare("d", "GPU-1", 40)
		want("GPU-0", 0)
		c.gate.Unprepare("d")
		want("GPU-1", 0)
	})
}

// A claim without a record does not hold the devices of its requests with admin access, and of others what it shares,
// according to the API server.
func TestRestoredClaims(t *testing.T) {
	const checkpoint = `{"Data":"{\"ClaimInfoStateList\":[` +
		`{\"ClaimUID\":\"a\",\"ClaimName\":\"a\",\"Namespace\":\"default\",\"PodUIDs\":{\"pod\":{}},\"DriverState\":{\"gpu.nvidia.com\":{\"Devices\":[` +
		`{\"PoolName\":\"node\",\"DeviceName\":\"gpu-0\",\"RequestNames\":[\"monitor\"]},{\"PoolName\":\"node\",\"DeviceName\":\"gpu-1\",\"RequestNames\":[\"gpu\"]}]}}},` +
		`{\"ClaimUID\":\"b\",\"ClaimName\":\"b\",\"Namespace\":\"default\",\"DriverState\":{\"gpu.nvidia.com\":{\"Devices\":[` +
		`{\"PoolName\":\"node\",\"DeviceName\":\"gpu-2\",\"RequestNames\":[\"monitor\"]}]}}}]}"}`
	const claim = `{"metadata":{"namespace":"default","name":"NAME","uid":"a"},"status":{"allocation":{"devices":{"results":[` +
		`{"request":"monitor","driver":"gpu.nvidia.com","pool":"node","device":"gpu-0","adminAccess":true},{"request":"gpu","driver":"gpu.nvidia.com","pool":"node","device":"gpu-1","consumedCapacity":{"cores":"30","memory":"1Gi"}},` +
		`{"request":"gpu","driver":"other","pool":"node","device":"gpu-2","consumedCapacity":{"cores":"30","memory":"1Gi"}}]}}}}`
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "dra_manager_state"), []byte(checkpoint), 0o600); err != nil {
		t.Fatal(err)
	}
	api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, strings.Replace(claim, "NAME", r.URL.Path[len(r.URL.Path)-1:], 1)) // claim b was replaced by another one
	}))
	defer api.Close()
	a := allocator.Claim{UID: "a", Namespace: "default", Name: "a", Pods: []string{"pod"}, Devices: []string{"GPU-1"}, Admin: []string{"GPU-0"},
		Amounts: map[string]allocator.Amount{"GPU-1": {Cores: 30, Memory: 1 << 30}}}
	b := allocator.Claim{UID: "b", Namespace: "default", Name: "b", Devices: []string{"GPU-2"}}
	restores := func(want ...allocator.Claim) {
		t.Helper()
		c := &claims{driverName: "gpu.nvidia.com", poolName: "node", node: host.NewRoot("/"), kubeletDir: dir,
			gate: allocator.NewGate(time.Now), client: cluster.New(api.URL, credentials(t))}
		c.restore(t.Context(), slog.New(slog.DiscardHandler))
		if got := c.gate.Claims(); !reflect.DeepEqual(got, want) {
			t.Errorf("restored %+v, want %+v", got, want)
		}
	}
	restores(a, b)
	api.Close()
	a.Devices, a.Admin, a.Amounts = []string{"GPU-0", "GPU-1"}, nil, nil
	restores(a, b)
}
