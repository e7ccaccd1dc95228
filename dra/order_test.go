package dra

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/gpucdi/gpucdi/allocator"
	"github.com/gpucdi/gpucdi/cluster"
	"github.com/gpucdi/gpucdi/gpu"
)

func TestOrder(t *testing.T) {
	inv := pairs(6)
	// The order depends on the free cores first, so quarter, which has fewer cores but more memory, is less than half.
	half, quarter := allocator.Amount{Cores: 50, Memory: 40 << 30}, allocator.Amount{Cores: 25, Memory: 60 << 30}
	share := func(from int) func(offers []Offer) {
		return func(offers []Offer) {
			for i := from; i < 4; i++ {
				offers[i].Capacity = allocator.Amount{Cores: 100, Memory: 80 << 30}
			}
		}
	}
	held := map[string]allocator.Amount{gpuID(1): quarter, gpuID(2): half, gpuID(3): {}}
	for _, tc := range []struct {
		name      string
		change    func(offers []Offer)
		held      map[string]allocator.Amount
		placement allocator.SharePlacement
		want      string
	}{
		{"all free", func([]Offer) {}, nil, allocator.Pack, "0 1 2 3 4 m0 m1"},
		{"one of a pair", func([]Offer) {}, map[string]allocator.Amount{gpuID(0): {}}, allocator.Pack, "2 3 0 1 4 m0 m1"},
		{"fault", func(offers []Offer) { offers[0].Fault = gpu.Gone() }, nil, allocator.Pack, "2 3 0 1 4 m0 m1"},
		{"two resources", func(offers []Offer) { offers[2].Resource, offers[3].Resource = "b", "b" }, nil, allocator.Pack, "0 1 4 2 3 m0 m1"},
		{"the fullest GPU first", share(0), held, allocator.Pack, "4 3 2 1 0 m0 m1"},
		{"the emptiest GPU first", share(0), held, allocator.Spread, "4 0 1 2 3 m0 m1"},
		{"shared GPUs after whole GPUs", share(2), nil, allocator.Pack, "0 1 4 2 3 m0 m1"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			offers := offersOf(inv)
			tc.change(offers)
			var order []string
			for _, o := range Order(inv, offers, tc.held, tc.placement) {
				short := o.ID[len(o.ID)-1:]
				if isMIG(o.ID) {
					short = "m" + short
				}
				order = append(order, short)
			}
			if got := strings.Join(order, " "); got != tc.want {
				t.Errorf("order %s, want %s", got, tc.want)
			}
		})
	}
}

// Shared devices have the capacities that users of gpu-manager (cores, memory) and of NVIDIA's DRA driver (shares)
// know.
func TestSharedDevices(t *testing.T) {
	inv := pairs(6)
	offers := offersOf(inv)[:2]
	offers[0].Capacity = allocator.Amount{Cores: 100, Memory: 40000 << 20}
	offers[1].Capacity = allocator.Amount{Replicas: 4}
	memory := cluster.Bytes(inv.GPUs[1].MemoryBytes).Value
	want := []string{
		`{"cores":{"value":"100","requestPolicy":{"default":"100","validRange":{"min":"1","step":"1"}}},` +
			`"memory":{"value":"40000Mi","requestPolicy":{"default":"40000Mi","validRange":{"min":"256Mi","step":"1Mi"}}}}`,
		`{"memory":{"value":"` + memory + `","requestPolicy":{"default":"0","validRange":{"min":"0","step":"1"}}},` +
			`"shares":{"value":"4","requestPolicy":{"default":"1","validRange":{"min":"1","step":"1"}}}}`,
	}
	for i, d := range Devices(inv, offers, cluster.NoSchedule) {
		got, err := json.Marshal(d.Capacity)
		if err != nil || string(got) != want[i] || !d.AllowMultipleAllocations {
			t.Errorf("device %d allows multiple allocations: %v, error %v, capacity\n%s, want\n%s", i, d.AllowMultipleAllocations, err, got, want[i])
		}
	}
}
