package gpu

import (
	"fmt"
	"slices"
)

// Link is the interconnect between a GPU and a peer.
type Link struct {
	Peer string `json:"peer"` // the other GPU's UUID

	// NVLinks is the number of NVLinks between the two, including those through an NVSwitch. 0 means PCIe only.
	NVLinks int `json:"nvlinks"`

	PCIe PCIePath `json:"pcie"`
}

// PCIePath is the PCIe topology between two GPUs.
type PCIePath int

// PCIeUnknown, then the PCIe topologies, nearest first, with their abbreviations in nvidia-smi topo; PSB is from DCGM.
const (
	PCIeUnknown  PCIePath = iota
	SameBoard             // PSB: two GPUs on one board
	OneSwitch             // PIX: at most one PCIe switch
	SwitchChain           // PXB: several switches, no host bridge
	HostBridge            // PHB: through the CPU's host bridge
	SameNUMANode          // NODE: several host bridges of one NUMA node
	CrossNUMA             // SYS: across the link between NUMA nodes
)

var pcieNames = [...]string{"unknown", "PSB", "PIX", "PXB", "PHB", "NODE", "SYS"}

func (p PCIePath) String() string {
	if p < 0 || int(p) >= len(pcieNames) {
		return pcieNames[PCIeUnknown]
	}
	return pcieNames[p]
}

// MarshalText implements encoding.TextMarshaler.
func (p PCIePath) MarshalText() ([]byte, error) { return []byte(p.String()), nil }

// UnmarshalText implements encoding.TextUnmarshaler.
func (p *PCIePath) UnmarshalText(text []byte) error {
	i := slices.Index(pcieNames[:], string(text))
	if i < 0 {
		return fmt.Errorf("parsing PCIe path: unknown value %q", text)
	}
	*p = PCIePath(i)
	return nil
}
