package health

import "fmt"

// Probe is what one look at a GPU found. A nil field is one that the GPU or
// its driver does not have.
type Probe struct {
	// Fault says why the GPU could not be looked at; empty when it answers.
	Fault string `json:"fault,omitempty"`

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

// Recovery is NVML's GPU recovery action.
type Recovery int

// The recovery actions that have names here; others are shown by number.
const (
	RecoveryNone Recovery = iota
	RecoveryReset
	RecoveryReboot
	RecoveryDrainP2P
	RecoveryDrainAndReset
)

func (r Recovery) String() string {
	switch r {
	case RecoveryNone:
		return "nothing"
	case RecoveryReset:
		return "a GPU reset"
	case RecoveryReboot:
		return "a reboot of the node"
	case RecoveryDrainP2P:
		return "an end of all peer-to-peer traffic"
	case RecoveryDrainAndReset:
		return "a drain and a GPU reset"
	}
	return fmt.Sprintf("recovery action %d", int(r))
}
