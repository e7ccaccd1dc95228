package health

import "fmt"

// Probe is what one look at a GPU found. A nil field is one that the GPU or
// its driver does not have.
type Probe struct {
	// Failed is why the GPU could not be probed; empty when it answers.
	Failed string `json:"failed,omitempty"`

	// Recovery is what the driver says has to be done to the GPU.
	Recovery *Recovery `json:"recovery,omitempty"`

	// Uncorrected counts the memory errors that could not be corrected since
	// the last reset.
	Uncorrected *uint64 `json:"uncorrected,omitempty"`

	// RowsFailed: a bad row of memory could not be replaced, since none is
	// left. The GPU has to be exchanged.
	RowsFailed bool `json:"rowsFailed,omitempty"`

	// RepairPending: a page or row is replaced at the next reset.
	RepairPending bool `json:"repairPending,omitempty"`
}

// Recovery is NVML's GPU recovery action: what the driver requires to be done. None means
// that the GPU can be used at once (NVIDIA GPU Memory Error Management, "Error Recovery and
// Response Flags").
type Recovery int

// The recovery actions, by NVML's numbers.
const (
	RecoveryNone Recovery = iota
	RecoveryReset
	RecoveryReboot
	RecoveryDrainP2P
	RecoveryDrainAndReset
	RecoveryIMEXDomain
	RecoveryBusReset
	RecoverySystemReboot
)

// required reports whether the GPU must not be given out until the action was taken.
// RecoveryIMEXDomain concerns the memory of other nodes, not this GPU.
func (r Recovery) required() bool { return r != RecoveryNone && r != RecoveryIMEXDomain }

func (r Recovery) String() string {
	switch r {
	case RecoveryNone:
		return "no recovery action"
	case RecoveryReset:
		return "a GPU reset"
	case RecoveryReboot:
		return "a reboot of the node"
	case RecoveryDrainP2P:
		return "an end of all peer-to-peer traffic"
	case RecoveryDrainAndReset:
		return "a drain and a GPU reset"
	case RecoveryIMEXDomain:
		return "a recovery of the IMEX domain"
	case RecoveryBusReset:
		return "a reset of the GPU's PCIe bus"
	case RecoverySystemReboot:
		return "a reboot of the system"
	}
	return fmt.Sprintf("recovery action %d", int(r))
}
