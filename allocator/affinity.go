package allocator

import "github.com/gpucdi/gpucdi/gpu"

// affinity holds how well each two devices of a resource work together, by
// their positions; higher is better. It is symmetric with a zero diagonal.
type affinity [][]int64

// The weights of what two GPUs have in common. Weights are added up over all
// pairs of a set; the steps between them are so large that for sets of up to
// 300 devices one more NVLink outweighs any nearness over PCIe, and that
// outweighs any number of shared NUMA nodes.
const (
	perNUMANode int64 = 1
	perPCIeStep int64 = 1 << 16
	perNVLink   int64 = 1 << 36
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

func newAffinity(gpus []gpu.GPU) affinity {
	position := make(map[string]int, len(gpus))
	aff := matrix(len(gpus))
	for i, g := range gpus {
		position[g.UUID] = i
	}
	for i, g := range gpus {
		for j := range i {
			aff.raise(i, j, sameNUMANode(g, gpus[j]))
		}
	}
	for i, g := range gpus {
		for _, link := range g.Links {
			if j, known := position[link.Peer]; known && j != i {
				aff.raise(i, j, sameNUMANode(g, gpus[j])+linkWeight(link))
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
