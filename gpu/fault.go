package gpu

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"
)

// Fault is why a GPU or MIG device cannot be allocated. The zero Fault is none.
type Fault struct {
	Code    FaultCode `json:"code"`
	Message string    `json:"message"`
	Remedy  string    `json:"remedy,omitempty"` // what fixes or clears it, where the message does not say so
	Since   time.Time `json:"since,omitzero"`   // zero where the producer of the fault does not know
}

// FaultCode identifies a condition of docs/health.md. Programs decide by it, and never by a
// message.
type FaultCode string

// The codes of faults; XIDFault has those of XIDs.
const (
	FaultUnresponsive   FaultCode = "unresponsive"
	FaultGone           FaultCode = "gone"
	FaultECC            FaultCode = "ecc"
	FaultRepairPending  FaultCode = "repair_pending"
	FaultRowsFailed     FaultCode = "rows_failed"
	FaultRecoveryNeeded FaultCode = "recovery_needed"
	FaultUnreadable     FaultCode = "unreadable"
	FaultDriver         FaultCode = "driver"
	FaultDeviceNode     FaultCode = "device_node"
	FaultSpec           FaultCode = "spec"
	FaultConfig         FaultCode = "config"
)

// XIDFault returns the code of a fault that is an XID.
func XIDFault(xid int) FaultCode { return FaultCode(fmt.Sprintf("xid_%d", xid)) }

// Remedies that several producers have.
const (
	RemedyReturn    = "reboot the node, or check the power and the slot of the GPU"
	RemedyKernelLog = "find its Xid in the kernel log"
)

// Gone returns the fault of a GPU or MIG device that an earlier inventory has and the latest lacks.
func Gone() Fault {
	return Fault{Code: FaultGone, Message: "gone: the driver no longer lists it", Remedy: RemedyReturn}
}

// None reports whether there is no fault.
func (f Fault) None() bool { return f.Code == "" }

// Same reports whether two faults are the same one, whatever is known of its remedy and beginning.
func (f Fault) Same(g Fault) bool { return f.Code == g.Code && f.Message == g.Message }

// String returns the message with the remedy.
func (f Fault) String() string {
	if f.Remedy == "" {
		return f.Message
	}
	return f.Message + "; " + f.Remedy
}

// Retain returns now with the GPUs and MIG devices of earlier that it lacks
// added at the end, with the fault of the unreadable one that has their index
// now, or Gone. A pod may still hold such a device, and the kubelet must
// never lose one that is allocated.
func Retain(earlier, now *Inventory) *Inventory {
	kept := *now
	kept.GPUs = slices.Clone(now.GPUs)
	for _, g := range earlier.GPUs {
		i := slices.IndexFunc(now.GPUs, func(n GPU) bool { return n.UUID == g.UUID })
		if i >= 0 {
			kept.GPUs[i].MIGDevices = retain(g.MIGDevices, now.GPUs[i].MIGDevices)
			continue
		}
		g.Fault, g.Links = now.absence(g.Index), nil
		if g.Fault.Code == FaultGone {
			g.MIGDevices = retain(g.MIGDevices, nil)
		}
		kept.GPUs = append(kept.GPUs, g)
	}
	return &kept
}

// absence is why a GPU that had this index is not among the GPUs.
func (inv *Inventory) absence(index int) Fault {
	i := slices.IndexFunc(inv.Unreadable, func(u Unreadable) bool { return u.Index == index })
	if i < 0 {
		return Gone()
	}
	return inv.Unreadable[i].Fault
}

// WithFaults returns the inventory with the GPUs and MIG devices that fault
// names a fault for, by UUID, marked with it. One that has a fault already keeps
// its own, which lies nearer to the cause. A GPU's fault is that of all its MIG
// devices.
func (inv *Inventory) WithFaults(fault func(uuid string) Fault) *Inventory {
	marked := *inv
	marked.GPUs = slices.Clone(inv.GPUs)
	for i := range marked.GPUs {
		g := &marked.GPUs[i]
		if g.Fault.None() {
			g.Fault = fault(g.UUID)
		}
		g.MIGDevices = slices.Clone(g.MIGDevices)
		for j := range g.MIGDevices {
			m := &g.MIGDevices[j]
			if m.Fault = cmp.Or(m.Fault, g.Fault); m.Fault.None() {
				m.Fault = fault(m.UUID)
			}
		}
	}
	return &marked
}

// Forget returns the inventory without the GPUs and MIG devices that are gone,
// but for those that keep names. A GPU stays with its MIG devices.
func (inv *Inventory) Forget(keep func(uuid string) bool) *Inventory {
	rest := *inv
	rest.GPUs = nil
	for _, g := range inv.GPUs {
		g.MIGDevices = slices.DeleteFunc(slices.Clone(g.MIGDevices), func(m MIGDevice) bool {
			return m.Fault.Code == FaultGone && !keep(m.UUID)
		})
		if g.Fault.Code != FaultGone || len(g.MIGDevices) > 0 || keep(g.UUID) {
			rest.GPUs = append(rest.GPUs, g)
		}
	}
	return &rest
}

// OneLine returns an error, which may be several, as the message of a Fault: tables, Events and RPC
// statuses have room for one line.
func OneLine(err error) string { return strings.ReplaceAll(err.Error(), "\n", "; ") }
