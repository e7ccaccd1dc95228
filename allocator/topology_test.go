package allocator

import (
	"fmt"
	"math/rand/v2"

	"github.com/gpucdi/gpucdi/gpu"
)

// node returns the inventory of a node with the GPUs GPU-0 to GPU-(n-1). between returns the link of two of them.
func node(n int, numaNode func(i int) int, between func(i, j int) gpu.Link) *gpu.Inventory {
	inv := &gpu.Inventory{}
	for i := range n {
		g := gpu.GPU{UUID: fmt.Sprintf("GPU-%d", i), Index: i, Minor: i, NUMANode: numaNode(i)}
		for j := range n {
			if i != j {
				link := between(min(i, j), max(i, j))
				link.Peer = fmt.Sprintf("GPU-%d", j)
				g.Links = append(g.Links, link)
			}
		}
		inv.GPUs = append(inv.GPUs, g)
	}
	return inv
}

// pcie returns the PCIe path between two GPUs of a node with two GPUs per switch and perNode GPUs per NUMA node.
func pcie(i, j, perNode int) gpu.PCIePath {
	switch {
	case i/perNode != j/perNode:
		return gpu.CrossNUMA
	case i/2 != j/2:
		return gpu.SameNUMANode
	}
	return gpu.OneSwitch
}

// topologies are common topologies of servers, and two corner cases.
var topologies = map[string]func() *gpu.Inventory{
	"8 on an NVSwitch": func() *gpu.Inventory {
		return node(8, func(i int) int { return i / 4 }, func(i, j int) gpu.Link {
			return gpu.Link{NVLinks: 18, PCIe: pcie(i, j, 4)}
		})
	},
	"hybrid cube mesh": func() *gpu.Inventory { // DGX-1 with V100
		links := [8][8]int{
			{0, 1, 1, 2, 2, 0, 0, 0},
			{0, 0, 2, 1, 0, 2, 0, 0},
			{0, 0, 0, 2, 0, 0, 1, 0},
			{0, 0, 0, 0, 0, 0, 0, 1},
			{0, 0, 0, 0, 0, 1, 1, 2},
			{0, 0, 0, 0, 0, 0, 2, 1},
			{0, 0, 0, 0, 0, 0, 0, 2},
		}
		return node(8, func(i int) int { return i / 4 }, func(i, j int) gpu.Link {
			return gpu.Link{NVLinks: links[i][j], PCIe: pcie(i, j, 4)}
		})
	},
	"4 on PCIe, 2 NUMA nodes": func() *gpu.Inventory {
		return node(4, func(i int) int { return i / 2 }, func(i, j int) gpu.Link {
			return gpu.Link{PCIe: pcie(i, j, 2)}
		})
	},
	"8 in bridged pairs": func() *gpu.Inventory {
		return node(8, func(i int) int { return i / 4 }, func(i, j int) gpu.Link {
			link := gpu.Link{PCIe: pcie(i, j, 4)}
			if j == i+4 { // bridges need not follow the PCIe tree
				link.NVLinks = 4
			}
			return link
		})
	},
	"16 in two groups": func() *gpu.Inventory {
		return node(16, func(i int) int { return i / 8 }, func(i, j int) gpu.Link {
			link := gpu.Link{PCIe: pcie(i, j, 8)}
			if i/8 == j/8 {
				link.NVLinks = 6
			}
			return link
		})
	},
	"16 with random links": func() *gpu.Inventory {
		random := rand.New(rand.NewPCG(3, 4))
		return node(16, func(i int) int { return i % 2 }, func(int, int) gpu.Link {
			return gpu.Link{NVLinks: random.IntN(4), PCIe: gpu.PCIePath(random.IntN(7))}
		})
	},
	"8 with unknown topology": func() *gpu.Inventory {
		return node(8, func(int) int { return gpu.NUMAUnknown }, func(int, int) gpu.Link { return gpu.Link{} })
	},
}

const testKind = "example.com/gpu"

func plan(inv *gpu.Inventory) *Resource { return Plan(inv, testKind, Policy{MIG: MIGNone})[0] }
