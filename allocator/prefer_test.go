package allocator

import (
	"errors"
	"fmt"
	"math/bits"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/gpucdi/gpucdi/gpu"
)

// gpus returns the UUIDs of GPUs by number.
func gpus(numbers ...int) []string {
	ids := make([]string, len(numbers))
	for i, n := range numbers {
		ids[i] = fmt.Sprintf("GPU-%d", n)
	}
	return ids
}

func all(n int) []string {
	ids := make([]string, n)
	for i := range ids {
		ids[i] = fmt.Sprintf("GPU-%d", i)
	}
	return ids
}

func TestPrefer(t *testing.T) {
	for _, tc := range []struct {
		name      string
		topology  string
		available []string
		required  []string
		size      int
		want      []string
	}{
		{"a bridged pair before a switch", "8 in bridged pairs", all(8), nil, 2, gpus(0, 4)},
		{"the remaining pair", "8 in bridged pairs", gpus(1, 2, 3, 4, 6), nil, 2, gpus(2, 6)},
		{"a single leaves pairs intact", "8 in bridged pairs", gpus(0, 1, 4), nil, 1, gpus(1)},
		{"two pairs of one switch", "8 in bridged pairs", all(8), nil, 4, gpus(0, 1, 4, 5)},
		{"the required one's pair", "8 in bridged pairs", all(8), gpus(3), 2, gpus(3, 7)},
		{"one NUMA node", "4 on PCIe, 2 NUMA nodes", gpus(0, 2, 3), nil, 2, gpus(2, 3)},
		{"a single leaves the node intact", "4 on PCIe, 2 NUMA nodes", gpus(0, 2, 3), nil, 1, gpus(0)},
		{"three linked GPUs", "hybrid cube mesh", all(8), nil, 3, gpus(0, 2, 3)},
		{"four linked GPUs", "hybrid cube mesh", all(8), nil, 4, gpus(0, 1, 2, 3)},
		{"a PCIe switch below an NVSwitch", "8 on an NVSwitch", gpus(1, 2, 3, 6), nil, 2, gpus(2, 3)},
		{"one group", "16 in two groups", all(16)[1:], nil, 8, gpus(8, 9, 10, 11, 12, 13, 14, 15)},
		{"unknown topology, in order", "8 with unknown topology", gpus(7, 5, 3, 1), nil, 2, gpus(1, 3)},
		{"all", "8 on an NVSwitch", all(8), nil, 8, all(8)},
		{"all of those available", "8 on an NVSwitch", gpus(6, 2), nil, 2, gpus(2, 6)},
		{"none", "8 on an NVSwitch", all(8), nil, 0, gpus()},
		{"none of none", "8 on an NVSwitch", nil, nil, 0, gpus()},
		{"only required", "8 on an NVSwitch", all(8), gpus(7, 0), 2, gpus(0, 7)},
		{"required but not available", "8 in bridged pairs", gpus(1, 2, 7), gpus(3), 2, gpus(3, 7)},
		{"repeated", "8 in bridged pairs", gpus(1, 1, 5, 5, 6, 6), gpus(5, 5), 2, gpus(1, 5)},
		{"unknown available", "8 in bridged pairs", gpus(20, 1, 5, 21), nil, 2, gpus(1, 5)},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got, err := plan(topologies[tc.topology]()).Prefer(tc.available, tc.required, tc.size)
			if err != nil {
				t.Fatal(err)
			}
			if !slices.Equal(got, tc.want) {
				t.Errorf("Prefer = %v, want %v", got, tc.want)
			}
		})
	}
}

func TestPreferAvoidsUnhealthy(t *testing.T) {
	inv := topologies["8 in bridged pairs"]()
	inv.GPUs[4].Fault = fault("ECC")
	r := plan(inv)
	if got, err := r.Prefer(all(8), nil, 2); err != nil || !slices.Equal(got, gpus(1, 5)) {
		t.Errorf("Prefer = %v, %v; want the first healthy pair, 1 and 5", got, err)
	}
	if got, err := r.Prefer(all(8), gpus(4), 2); err != nil || !slices.Equal(got, gpus(0, 4)) {
		t.Errorf("Prefer with 4 required = %v, %v; want 0 and 4", got, err)
	}
}

func TestPreferErrors(t *testing.T) {
	inv := topologies["8 in bridged pairs"]()
	inv.GPUs[4].Fault = fault("ECC")
	for _, tc := range []struct {
		name      string
		available []string
		required  []string
		size      int
		is        error
		message   string
	}{
		{"too few", gpus(0, 1), nil, 3, ErrMalformed, "3 devices of nvidia.com/gpu"},
		{"too few when repeated", gpus(0, 0, 0), nil, 2, ErrMalformed, "but only 1 can be used"},
		{"too few healthy", gpus(0, 4), nil, 2, ErrUnhealthy, "GPU-4 of nvidia.com/gpu: ECC"},
		{"negative", gpus(0, 1), nil, -1, ErrMalformed, "-1"},
		{"more required than requested", gpus(0, 1), gpus(0, 1), 1, ErrMalformed, "2 devices"},
		{"unknown required", gpus(0, 1), gpus(9), 1, ErrUnknown, `"GPU-9"`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got, err := plan(inv).Prefer(tc.available, tc.required, tc.size)
			if !errors.Is(err, tc.is) || !strings.Contains(err.Error(), tc.message) {
				t.Errorf("Prefer = %v, %v; want %q with %q", got, err, tc.is, tc.message)
			}
		})
	}
}

// TestPreferIsOptimal compares Prefer with an exhaustive search: for up to 8 GPUs with each subset available, and none
// or any one required; for 16 GPUs with a sample.
func TestPreferIsOptimal(t *testing.T) {
	for name, topology := range topologies {
		t.Run(name, func(t *testing.T) {
			inv := topology()
			r, n := plan(inv), len(inv.GPUs)
			if n <= 8 {
				for available := range uint(1) << n {
					compareWithAll(t, r, available, 0)
					for required := range n {
						compareWithAll(t, r, available|1<<required, 1<<required)
					}
				}
				return
			}
			random := rand.New(rand.NewPCG(1, 2))
			for range 20 {
				available := random.UintN(1 << n)
				compareWithAll(t, r, available, available&random.UintN(1<<n)&random.UintN(1<<n))
			}
			compareWithAll(t, r, 1<<n-1, 0)
		})
	}
}

// compareWithAll checks Prefer for every size: the set must be valid, have the highest weight, and among the sets with
// that weight leave the remainder with the highest weight.
func compareWithAll(t *testing.T, r *Resource, available, required uint) {
	t.Helper()
	count := bits.OnesCount(available)
	type best struct{ inside, rest int64 }
	want := make([]best, count+1)
	for i := range want {
		want[i].inside = -1
	}
	for set := available; ; set = (set - 1) & available {
		if set&required == required {
			w := &want[bits.OnesCount(set)]
			if inside := sum(r, set); inside >= w.inside {
				rest := sum(r, available&^set)
				if inside > w.inside || rest > w.rest {
					*w = best{inside, rest}
				}
			}
		}
		if set == 0 {
			break
		}
	}
	for size := bits.OnesCount(required); size <= count; size++ {
		ids, err := r.Prefer(idsOf(r, available), idsOf(r, required), size)
		if err != nil {
			t.Fatal(err)
		}
		var got uint
		for _, id := range ids {
			got |= 1 << r.position[id]
		}
		if bits.OnesCount(got) != size || len(ids) != size || got&^available != 0 || got&required != required {
			t.Fatalf("%d of %v with %v: %v is not a valid set", size, idsOf(r, available), idsOf(r, required), ids)
		}
		if score := (best{sum(r, got), sum(r, available&^got)}); score != want[size] {
			t.Fatalf("%d of %v with %v: %v has %v, the best %v", size,
				idsOf(r, available), idsOf(r, required), ids, score, want[size])
		}
	}
}

func idsOf(r *Resource, set uint) (ids []string) {
	for i, d := range r.Devices {
		if set>>i&1 == 1 {
			ids = append(ids, d.ID)
		}
	}
	return ids
}

func sum(r *Resource, set uint) (total int64) {
	for a := set; a != 0; a &= a - 1 {
		i := bits.TrailingZeros(a)
		for b := a & (a - 1); b != 0; b &= b - 1 {
			total += r.affinity[i][bits.TrailingZeros(b)]
		}
	}
	return total
}

// TestPreferIsBounded requests so many devices that an exhaustive search would not end.
func TestPreferIsBounded(t *testing.T) {
	random := rand.New(rand.NewPCG(5, 6))
	r := plan(node(96, func(i int) int { return i % 4 }, func(int, int) gpu.Link {
		return gpu.Link{NVLinks: random.IntN(4), PCIe: gpu.PCIePath(random.IntN(7))}
	}))
	got, err := r.Prefer(all(96), gpus(95, 90), 48)
	if err != nil {
		t.Fatal(err)
	}
	if distinct := slices.Compact(slices.Clone(got)); len(got) != 48 || len(distinct) != 48 {
		t.Errorf("Prefer = %d devices, %d of them distinct; want 48", len(got), len(distinct))
	}
	if !slices.Contains(got, "GPU-95") || !slices.Contains(got, "GPU-90") {
		t.Errorf("Prefer = %v without the required 90 and 95", got)
	}
}

func TestPreferIsDeterministic(t *testing.T) {
	for name, topology := range topologies {
		r := plan(topology())
		ids := idsOf(r, 1<<len(r.Devices)-1)
		for size := range ids {
			want, err := r.Prefer(ids, nil, size)
			if err != nil {
				t.Fatal(err)
			}
			shuffled := slices.Clone(ids)
			rand.Shuffle(len(ids), func(i, j int) { shuffled[i], shuffled[j] = shuffled[j], shuffled[i] })
			if got, err := r.Prefer(shuffled, nil, size); err != nil || !slices.Equal(got, want) {
				t.Errorf("%s: %d of %v = %v, %v; in order %v", name, size, shuffled, got, err, want)
			}
		}
	}
}

func BenchmarkPrefer(b *testing.B) {
	for _, bc := range []struct {
		topology string
		size     int
	}{
		{"8 on an NVSwitch", 4}, {"hybrid cube mesh", 4}, {"8 in bridged pairs", 4}, {"16 in two groups", 8},
		{"16 with random links", 8},
	} {
		b.Run(fmt.Sprintf("%d of %s", bc.size, bc.topology), func(b *testing.B) {
			r := plan(topologies[bc.topology]())
			ids := idsOf(r, 1<<len(r.Devices)-1)
			b.ReportAllocs()
			for b.Loop() {
				if _, err := r.Prefer(ids, nil, bc.size); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func BenchmarkLookup(b *testing.B) {
	r := plan(topologies["8 on an NVSwitch"]())
	ids := all(8)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := r.Lookup(ids); err != nil {
			b.Fatal(err)
		}
	}
}
