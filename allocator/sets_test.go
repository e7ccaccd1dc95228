package allocator

import (
	"fmt"
	"maps"
	"math/bits"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/gpucdi/gpucdi/gpu"
)

// members returns the sets of a size by name, including GPUs in no full set.
func (s Sets) members(size int) map[string][]string {
	sets := map[string][]string{}
	for _, uuid := range slices.Sorted(maps.Keys(s.names)) {
		name := s.Name(uuid, size)
		sets[name] = append(sets[name], uuid)
	}
	return sets
}

// text formats the full sets of a size by the indexes of their GPUs.
func (s Sets) text(size int) string {
	var sets []string
	for _, members := range s.members(size) {
		if len(members) == size {
			sets = append(sets, strings.ReplaceAll(strings.Join(members, ""), "GPU-", " "))
		}
	}
	slices.Sort(sets)
	return strings.TrimSpace(strings.Join(sets, ","))
}

func TestSets(t *testing.T) {
	all := []string{"GPU-0", "GPU-1", "GPU-2", "GPU-3", "GPU-4", "GPU-5", "GPU-6", "GPU-7"}
	for _, tc := range []struct {
		topology         string
		without          string
		two, four, eight string
	}{
		{"8 on an NVSwitch", "", "0 1, 2 3, 4 5, 6 7", "0 1 2 3, 4 5 6 7", "0 1 2 3 4 5 6 7"},
		{"8 in bridged pairs", "", "0 4, 1 5, 2 6, 3 7", "0 1 4 5, 2 3 6 7", "0 1 2 3 4 5 6 7"},
		{"hybrid cube mesh", "", "0 3, 1 2, 4 7, 5 6", "0 1 2 3, 4 5 6 7", "0 1 2 3 4 5 6 7"},
		{"4 on PCIe, 2 NUMA nodes", "", "0 1, 2 3", "0 1 2 3", ""},
		{"8 on an NVSwitch", "GPU-2", "0 1, 4 5, 6 7", "4 5 6 7", ""},
		{"8 in bridged pairs", "GPU-4", "1 5, 2 6, 3 7", "2 3 6 7", ""},
		{"4 on PCIe, 2 NUMA nodes", "GPU-0", "2 3", "", ""},
	} {
		inv := topologies[tc.topology]()
		ids := slices.DeleteFunc(slices.Clone(all[:len(inv.GPUs)]), func(id string) bool { return id == tc.without })
		sets := NewSets(inv, ids)
		for size, want := range map[int]string{2: tc.two, 4: tc.four, 8: tc.eight} {
			if got := sets.text(size); got != want {
				t.Errorf("%s without %q: sets of %d are %q, want %q", tc.topology, tc.without, size, got, want)
			}
		}
	}
}

// The number of sets is the maximum, and sets are nested and independent of the order of the GPUs. A GPU in no full set
// has its UUID as the name.
func TestSetsAreNested(t *testing.T) {
	random := rand.New(rand.NewPCG(7, 8))
	for name, topology := range topologies {
		inv := topology()
		for range 20 {
			ids := randomIDs(random, inv)
			sets := NewSets(inv, ids)
			random.Shuffle(len(ids), func(i, j int) { ids[i], ids[j] = ids[j], ids[i] })
			if again := NewSets(inv, append(ids, ids...)); !maps.Equal(sets.names, again.names) {
				t.Fatalf("%s: sets of %v differ by order", name, ids)
			}
			for i, size := range SetSizes {
				full := 0
				for set, members := range sets.members(size) {
					if len(members) == size {
						full++
					} else if len(members) > 1 || set != members[0] {
						t.Fatalf("%s: set %s of %d has %v", name, set, size, members)
					}
					if i+1 < len(SetSizes) {
						checkNested(t, sets, members, SetSizes[i+1])
					}
				}
				if full != len(ids)/size {
					t.Fatalf("%s: %d sets of %d among %d GPUs", name, full, size, len(ids))
				}
			}
		}
	}
}

// checkNested checks that a set is in one full set of a larger size, or in none.
func checkNested(t *testing.T, sets Sets, members []string, larger int) {
	t.Helper()
	all := sets.members(larger)
	of := all[sets.Name(members[0], larger)]
	for _, m := range members[1:] {
		// GPUs in no full set have names of their own, so two of them are in different groups of one GPU each.
		if !slices.Contains(of, m) && len(all[sets.Name(m, larger)])+len(of) > 2 {
			t.Fatalf("set %v is in two sets of %d", members, larger)
		}
	}
}

// randomIDs returns a random subset of the GPUs.
func randomIDs(random *rand.Rand, inv *gpu.Inventory) (ids []string) {
	for _, g := range inv.GPUs {
		if random.IntN(4) > 0 {
			ids = append(ids, g.UUID)
		}
	}
	return ids
}

// On regular nodes, the sets of 2 and of 4 are those with the highest total weight of all partitions.
func TestSetsAreOptimal(t *testing.T) {
	for _, name := range []string{"8 on an NVSwitch", "8 in bridged pairs", "hybrid cube mesh", "4 on PCIe, 2 NUMA nodes"} {
		r := plan(topologies[name]())
		ids := idsOf(r, 1<<len(r.Devices)-1)
		sets := NewSets(topologies[name](), ids)
		for _, size := range SetSizes[:2] {
			var got int64
			for _, members := range sets.members(size) {
				var set uint
				for _, m := range members {
					set |= 1 << r.position[m]
				}
				got += sum(r, set)
			}
			if want := bestPartition(r, 1<<len(ids)-1, size); got != want {
				t.Errorf("%s: sets of %d have weight %d, the best %d", name, size, got, want)
			}
		}
	}
}

// bestPartition returns the highest total weight of a partition of devices into sets of a size.
func bestPartition(r *Resource, devices uint, size int) (best int64) {
	if devices == 0 {
		return 0
	}
	for set := devices; set != 0; set = (set - 1) & devices {
		if set&(devices&-devices) != 0 && bits.OnesCount(set) == size {
			best = max(best, sum(r, set)+bestPartition(r, devices&^set, size))
		}
	}
	return best
}

// TestSetsAreBounded plans sets for so many irregularly linked GPUs that an exhaustive search would not end.
func TestSetsAreBounded(t *testing.T) {
	random := rand.New(rand.NewPCG(5, 6))
	inv := node(96, func(i int) int { return i % 4 }, func(int, int) gpu.Link {
		return gpu.Link{NVLinks: random.IntN(4), PCIe: gpu.PCIePath(random.IntN(7))}
	})
	sets := NewSets(inv, all(96))
	if n := len(sets.members(8)); n != 12 {
		t.Errorf("%d sets of 8 among 96 GPUs", n)
	}
}

func TestUnknownGPUs(t *testing.T) {
	inv := partitioned(nil, times(2, "1g.5gb"))
	sets := NewSets(inv, []string{"GPU-0", "MIG-1.0", "gone"})
	for _, id := range []string{"GPU-0", "MIG-1.0", "gone", "other"} {
		for _, size := range []int{2, 3, 4, 8} {
			if got := sets.Name(id, size); got != id {
				t.Errorf("set of %d of %s is %s", size, id, got)
			}
		}
	}
}

func TestNVLinkDomains(t *testing.T) {
	for topology, want := range map[string]string{
		"8 on an NVSwitch":        "0 0 0 0 0 0 0 0",
		"hybrid cube mesh":        "0 0 0 0 0 0 0 0",
		"8 in bridged pairs":      "0 1 2 3 0 1 2 3",
		"4 on PCIe, 2 NUMA nodes": "0 1 2 3",
		"16 in two groups":        "0 0 0 0 0 0 0 0 10 10 10 10 10 10 10 10",
	} {
		inv := topologies[topology]()
		domains := NVLinkDomains(inv)
		var got []string
		for _, g := range inv.GPUs {
			got = append(got, strings.TrimPrefix(domains[g.UUID], "GPU-"))
		}
		if text := strings.Join(got, " "); text != want {
			t.Errorf("%s: domains %s, want %s", topology, text, want)
		}
	}
}

func BenchmarkSets(b *testing.B) {
	for _, name := range []string{"8 on an NVSwitch", "16 in two groups", "16 with random links"} {
		b.Run(name, func(b *testing.B) {
			inv := topologies[name]()
			ids := all(len(inv.GPUs))
			for b.Loop() {
				NewSets(inv, ids)
			}
		})
	}
}

// The free GPUs begin with a whole set of each size for which there is one, so that a claim for that many gets it.
func TestOrderOfSets(t *testing.T) {
	random := rand.New(rand.NewPCG(9, 10))
	for name, topology := range topologies {
		inv := topology()
		for range 200 {
			ids := randomIDs(random, inv)
			sets := NewSets(inv, ids)
			free := map[string]bool{}
			for _, id := range ids {
				free[id] = random.IntN(5) > 0
			}
			order := slices.DeleteFunc(Order(inv, sets, ids, func(id string) bool { return free[id] }),
				func(id string) bool { return !free[id] })
			for _, size := range SetSizes {
				whole := wholeSets(sets, size, free)
				if len(whole) > 0 && !slices.ContainsFunc(whole, func(set []string) bool { return equalMembers(set, order[:size]) }) {
					t.Fatalf("%s: first %v, want one of the sets %v; free: %v", name, order[:size], whole, free)
				}
			}
		}
	}
}

// wholeSets returns the full sets of a size of which all members are free.
func wholeSets(sets Sets, size int, free map[string]bool) (whole [][]string) {
	for _, members := range sets.members(size) {
		if len(members) == size && !slices.ContainsFunc(members, func(m string) bool { return !free[m] }) {
			whole = append(whole, members)
		}
	}
	return whole
}

func equalMembers(a, b []string) bool {
	return slices.Equal(slices.Sorted(slices.Values(a)), slices.Sorted(slices.Values(b)))
}

func TestOrder(t *testing.T) {
	for _, tc := range []struct {
		name, topology, allocated, want string
	}{
		{"all free", "8 in bridged pairs", "", "0 4 1 5 2 6 3 7"},
		{"one allocated", "8 in bridged pairs", "6", "0 4 1 5 3 7 2 6"},
		{"two sets broken", "8 in bridged pairs", "6 0 4", "3 7 1 5 2 6 0 4"},
		{"all allocated", "4 on PCIe, 2 NUMA nodes", "0 1 2 3", "0 1 2 3"},
	} {
		inv := topologies[tc.topology]()
		ids := all(len(inv.GPUs))
		sets := NewSets(inv, ids)
		for range 5 {
			rand.Shuffle(len(ids), func(i, j int) { ids[i], ids[j] = ids[j], ids[i] })
			order := Order(inv, sets, ids, func(id string) bool {
				return !slices.Contains(strings.Fields(tc.allocated), strings.TrimPrefix(id, "GPU-"))
			})
			if got := strings.ReplaceAll(strings.Join(order, " "), "GPU-", ""); got != tc.want {
				t.Errorf("%s: order %s, want %s", tc.name, got, tc.want)
			}
		}
	}
}

// MIG devices of the GPU with the fewest free ones come first, so that GPUs stay unused.
func TestOrderOfMIGDevices(t *testing.T) {
	inv := partitioned(times(3, "1g.5gb"), times(3, "1g.5gb"), times(2, "1g.5gb"))
	ids := []string{"gone"}
	for _, g := range inv.GPUs {
		for _, m := range g.MIGDevices {
			ids = append(ids, m.UUID)
		}
	}
	order := Order(inv, NewSets(inv, nil), ids, func(id string) bool { return id != "MIG-1.0" && id != "MIG-1.2" && id != "gone" })
	if got, want := fmt.Sprint(order), "[gone MIG-1.0 MIG-1.1 MIG-1.2 MIG-2.0 MIG-2.1 MIG-0.0 MIG-0.1 MIG-0.2]"; got != want {
		t.Errorf("order %s, want %s", got, want)
	}
}
