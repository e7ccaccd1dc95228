package gpu

import (
	"fmt"
	"slices"
)

// Link is how one GPU reaches another.
type Link struct {
	Peer string `json:"peer"` // the other GPU's UUID

	// NVLinks counts the NVLinks between the two, those through an NVSwitch
	// included. 0 means that they talk over PCIe only.
	NVLinks int `json:"nvlinks"`

	PCIe PCIePath `json:"pcie"`
}

// PCIePath is the way between two GPUs over PCIe, nearest first; the names in
// the comments are nvidia-smi's.
type PCIePath int

// The ways over PCIe.
const (
	PCIeUnknown  PCIePath = iota
	SameBoard             // PSB: two GPUs of one board
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
		return fmt.Errorf("reading a PCIe path: %q is none", text)
	}
	*p = PCIePath(i)
	return nil
}
