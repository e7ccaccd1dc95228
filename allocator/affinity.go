package allocator

import "github.com/gpucdi/gpucdi/gpu"

// affinity holds how well each two devices of a resource work together, by
// their positions; higher is better. It is symmetric with a zero diagonal.
type affinity [][]int64

// The weights of what two devices have in common. Weights are added up over all
// pairs of a set; the steps between them are so large that for sets of up to
// 300 devices one more NVLink outweighs any nearness over PCIe, and that
// outweighs any number of shared NUMA nodes.
//
// Two MIG devices of one GPU outweigh the NVLinks of any two GPUs: a request for
// several is packed onto few GPUs, and one for a single device, which leaves the
// best together for others, comes from the GPU with the fewest left. So GPUs
// stay free as a whole for as long as can be, to be cut anew.
const (
	perNUMANode int64 = 1
	perPCIeStep int64 = 1 << 16
	perNVLink   int64 = 1 << 36
	perGPU      int64 = 1 << 42
)

// nearness counts the steps of each way over PCIe. The wide step below
// SameNUMANode keeps a set on one NUMA node: three GPUs of one node beat a
// pair on one switch together with a third across the node link, because the
// slowest way sets the pace of a collective.
var nearness = [...]int64{
	gpu.PCIeUnknown:  0,
	gpu.CrossNUMA:    1,
	gpu.SameNUMANode: 6,
	gpu.HostBridge:   7,
	gpu.SwitchChain:  8,
	gpu.OneSwitch:    9,
	gpu.SameBoard:    10,
}

// newAffinity weighs each two devices by the GPUs that they are, or are a part
// of.
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
				aff.raise(i, j, perGPU+sameNUMANode(g, other))
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

// raise sets the weight of a pair if it is higher than what the pair has. The
// two ends of a link are read one after the other and may differ when one GPU
// stopped answering in between: what either end saw is there.
func (a affinity) raise(i, j int, weight int64) {
	weight = max(weight, a[i][j])
	a[i][j], a[j][i] = weight, weight
}

func linkWeight(link gpu.Link) int64 {
	weight := int64(link.NVLinks) * perNVLink
	if link.PCIe >= 0 && int(link.PCIe) < len(nearness) {
		weight += nearness[link.PCIe] * perPCIeStep
	}
	return weight
}

func sameNUMANode(a, b gpu.GPU) int64 {
	if a.NUMANode == gpu.NUMAUnknown || a.NUMANode != b.NUMANode {
		return 0
	}
	return perNUMANode
}
