package allocator

import "github.com/gpucdi/gpucdi/gpu"

// affinity is a matrix of the link weights of each pair of devices, by their positions in the resource; higher is
// better. It is symmetric with a zero diagonal.
type affinity [][]int64

// Weights of the links between two devices. The weight of a set is the sum over all its pairs. The weights differ by
// so much that in sets of up to 300 devices one more NVLink outweighs any PCIe topology, which outweighs any number of
// shared NUMA nodes.
//
// Two MIG devices of one GPU outweigh the NVLinks of any two GPUs: a request for several MIG devices is packed onto few
// GPUs, and a request for one takes it from the GPU with the fewest left. So as many GPUs as possible stay unused and
// can be repartitioned.
const (
	sameNUMANodeWeight int64 = 1
	pcieRankWeight     int64 = 1 << 16
	nvLinkWeight       int64 = 1 << 36
	sameGPUWeight      int64 = 1 << 42
)

// pcieRank ranks PCIe paths. The gap below SameNUMANode keeps a set on one NUMA node: three GPUs of one node rank
// higher than a pair on one switch and a third on another node, because the slowest path limits a collective.
var pcieRank = [...]int64{
	gpu.PCIeUnknown:  0,
	gpu.CrossNUMA:    1,
	gpu.SameNUMANode: 6,
	gpu.HostBridge:   7,
	gpu.SwitchChain:  8,
	gpu.OneSwitch:    9,
	gpu.SameBoard:    10,
}

// newAffinity returns the affinity of devices, given the GPU of each.
func newAffinity(owners []gpu.GPU) affinity {
	aff := matrix(len(owners))
	for i, g := range owners {
		links := make(map[string]gpu.Link, len(g.Links))
		for _, link := range g.Links {
			links[link.Peer] = link
		}
		for j, other := range owners {
			switch {
			case j == i:
			case other.UUID == g.UUID:
				aff.raise(i, j, sameGPUWeight+sameNUMANode(g, other))
			default:
				aff.raise(i, j, linkWeight(links[other.UUID])+sameNUMANode(g, other))
			}
		}
	}
	return aff
}

func matrix(n int) affinity {
	rows, cells := make(affinity, n), make([]int64, n*n)
	for i := range rows {
		rows[i] = cells[i*n : (i+1)*n]
	}
	return rows
}

// raise sets the weight of a pair to the maximum of its current weight and weight. The two ends of a link are read one
// after the other and differ if a GPU stops responding in between; the end that reports the link is right.
func (a affinity) raise(i, j int, weight int64) {
	weight = max(weight, a[i][j])
	a[i][j], a[j][i] = weight, weight
}

func linkWeight(link gpu.Link) int64 {
	weight := int64(link.NVLinks) * nvLinkWeight
	if link.PCIe >= 0 && int(link.PCIe) < len(pcieRank) {
		weight += pcieRank[link.PCIe] * pcieRankWeight
	}
	return weight
}

func sameNUMANode(a, b gpu.GPU) int64 {
	if a.NUMANode == gpu.NUMAUnknown || a.NUMANode != b.NUMANode {
		return 0
	}
	return sameNUMANodeWeight
}
