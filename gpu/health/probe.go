package health

import "fmt"

// Probe is the result of probing a GPU. A nil field is not supported by the GPU or the driver.
type Probe struct {
	// Failed is the error of the probe; empty if the GPU responds.
	Failed string `json:"failed,omitempty"`

	// Recovery is the recovery action that the driver requires.
	Recovery *Recovery `json:"recovery,omitempty"`

	// Uncorrected is the number of uncorrectable ECC errors since the last reset.
	Uncorrected *uint64 `json:"uncorrected,omitempty"`

	// RowsFailed reports whether row remapping failed because no spare rows are left. The GPU must be replaced.
	RowsFailed bool `json:"rowsFailed,omitempty"`

	// RepairPending reports whether a page retirement or row remapping takes effect at the next reset.
	RepairPending bool `json:"repairPending,omitempty"`
}

// Recovery is NVML's GPU recovery action. RecoveryNone means that the GPU is usable immediately (NVIDIA GPU Memory
// Error Management, "Error Recovery and Response Flags").
type Recovery int

// The recovery actions, with NVML's values.
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

// required reports whether the GPU must not be allocated before the action is taken. RecoveryIMEXDomain affects the
// memory of other nodes, not this GPU.
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
		return "a drain of peer-to-peer traffic"
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
