package allocator

import (
	"testing"

	"github.com/gpucdi/gpucdi/gpu"
)

func TestAffinityOrder(t *testing.T) {
	type pair struct {
		name     string
		link     gpu.Link
		numaA    int
		numaB    int
		strictly bool // higher than the one before it
	}
	ascending := []pair{
		{"nothing reported", gpu.Link{}, gpu.NUMAUnknown, gpu.NUMAUnknown, false},
		{"two NUMA nodes", gpu.Link{}, 0, 1, false},
		{"one NUMA node", gpu.Link{}, 1, 1, true},
		{"SYS", gpu.Link{PCIe: gpu.CrossNUMA}, 0, 1, true},
		{"NODE", gpu.Link{PCIe: gpu.SameNUMANode}, 0, 0, true},
		{"PHB", gpu.Link{PCIe: gpu.HostBridge}, 0, 0, true},
		{"PXB", gpu.Link{PCIe: gpu.SwitchChain}, 0, 0, true},
		{"PIX", gpu.Link{PCIe: gpu.OneSwitch}, 0, 0, true},
		{"PSB", gpu.Link{PCIe: gpu.SameBoard}, 0, 0, true},
		{"1 NVLink", gpu.Link{NVLinks: 1, PCIe: gpu.CrossNUMA}, 0, 1, true},
		{"4 NVLinks", gpu.Link{NVLinks: 4}, 0, 1, true},
		{"4 NVLinks, PIX", gpu.Link{NVLinks: 4, PCIe: gpu.OneSwitch}, 0, 0, true},
	}
	previous := int64(0)
	for _, tc := range ascending {
		tc.link.Peer = "B"
		aff := newAffinity([]gpu.GPU{
			{UUID: "A", NUMANode: tc.numaA, Links: []gpu.Link{tc.link}},
			{UUID: "B", NUMANode: tc.numaB}, // only A reports the link
		})
		if aff[0][1] != aff[1][0] || aff[0][0] != 0 || aff[1][1] != 0 {
			t.Errorf("%s: %v is not symmetric with a zero diagonal", tc.name, aff)
		}
		if got := aff[0][1]; got < previous || (tc.strictly && got == previous) {
			t.Errorf("%s: weight %d is too low after %d", tc.name, got, previous)
		}
		previous = aff[0][1]
	}
}

func TestAffinityIgnoresInvalidLinks(t *testing.T) {
	aff := newAffinity([]gpu.GPU{{UUID: "A", NUMANode: 0, Links: []gpu.Link{
		{Peer: "gone", NVLinks: 4}, {Peer: "A", NVLinks: 4}, {Peer: "B", PCIe: gpu.PCIePath(len(pcieRank))}, {Peer: "C", PCIe: -1},
	}}, {UUID: "B", NUMANode: 1}, {UUID: "C", NUMANode: 2}})
	for i := range aff {
		for j, weight := range aff[i] {
			if weight != 0 {
				t.Errorf("[%d][%d] = %d, want 0", i, j, weight)
			}
		}
	}
}
