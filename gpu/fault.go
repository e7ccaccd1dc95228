package gpu

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"
)

// Fault is the reason that a GPU or MIG device cannot be allocated. The zero Fault means no fault.
type Fault struct {
	Code    FaultCode `json:"code"`
	Message string    `json:"message"`
	Remedy  string    `json:"remedy,omitempty"` // what fixes or clears the fault; empty if Message contains it
	Since   time.Time `json:"since,omitzero"`   // zero if unknown
}

// FaultCode identifies a fault condition of docs/health.md. Match on the code, never on the message.
type FaultCode string

// The fault codes. XIDFault returns those of XIDs.
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
	FaultForeignHolder  FaultCode = "foreign_holder"
	FaultCordoned       FaultCode = "cordoned"
	FaultMPS            FaultCode = "mps"
)

// XIDFault returns the fault code of an XID.
func XIDFault(xid int) FaultCode { return FaultCode(fmt.Sprintf("xid_%d", xid)) }

// Remedies that several packages use.
const (
	RemedyReboot    = "reboot the node, or check the GPU's power and PCIe slot"
	RemedyKernelLog = "check the kernel log for Xid errors"
)

// Gone returns the fault of a GPU or MIG device that was in an earlier inventory and is missing from the latest.
func Gone() Fault {
	return Fault{Code: FaultGone, Message: "gone: the driver no longer lists it", Remedy: RemedyReboot}
}

// None reports whether f is the zero Fault.
func (f Fault) None() bool { return f.Code == "" }

// Same reports whether f and g have the same code and message. Remedy and Since are ignored.
func (f Fault) Same(g Fault) bool { return f.Code == g.Code && f.Message == g.Message }

// String returns the message, followed by the remedy if there is one.
func (f Fault) String() string {
	if f.Remedy == "" {
		return f.Message
	}
	return f.Message + "; " + f.Remedy
}

// Retain copies now and appends the GPUs and MIG devices that are only in earlier. A pod may still hold such a device,
// and an allocated device must remain advertised to the kubelet. If an entry of Unreadable can only be the missing GPU,
// the GPU has the fault of that entry; otherwise its fault is Gone.
//
// A partial GPU keeps its earlier attributes and MIG devices, because containers that hold it may restart.
func Retain(earlier, now *Inventory) *Inventory {
	kept := *now
	kept.GPUs = slices.Clone(now.GPUs)
	for _, g := range earlier.GPUs {
		i := slices.IndexFunc(now.GPUs, func(n GPU) bool { return n.UUID == g.UUID })
		switch {
		case i >= 0 && now.GPUs[i].Partial:
			g.Index, g.Links, g.Fault, g.Partial = now.GPUs[i].Index, now.GPUs[i].Links, now.GPUs[i].Fault, true
			kept.GPUs[i] = g
			continue
		case i >= 0:
			kept.GPUs[i].MIGDevices = retain(g.MIGDevices, now.GPUs[i].MIGDevices)
			continue
		}
		g.Fault, g.Links = missingFault(g, earlier, now), nil
		if g.Fault.Code == FaultGone {
			g.MIGDevices = retain(g.MIGDevices, nil)
		}
		kept.GPUs = append(kept.GPUs, g)
	}
	return &kept
}

// missingFault returns the fault of g, which earlier contains but now lacks: the fault of the unreadable GPU with the
// same index, or Gone. Indexes shift when a GPU leaves the bus, and the index of a GPU that is gone is obsolete.
func missingFault(g GPU, earlier, now *Inventory) Fault {
	i := slices.IndexFunc(now.Unreadable, func(u Unreadable) bool { return u.Index == g.Index })
	// The entry is a MIG device if the GPU with this index is readable.
	isMIGDevice := slices.ContainsFunc(now.GPUs, func(n GPU) bool { return n.Index == g.Index })
	if i < 0 || isMIGDevice || g.Fault.Code == FaultGone || now.count() < earlier.count() {
		return Gone()
	}
	return now.Unreadable[i].Fault
}

// count returns the number of GPUs that the driver lists. NVML enumerates them without gaps.
func (inv *Inventory) count() (n int) {
	for _, g := range inv.GPUs {
		if g.Fault.Code != FaultGone {
			n = max(n, g.Index+1)
		}
	}
	for _, u := range inv.Unreadable {
		n = max(n, u.Index+1)
	}
	return n
}

// WithFaults returns a copy of the inventory in which each GPU and MIG device has the fault that fault returns for
// its UUID. A fault that is already set takes precedence, because it is closer to the cause. MIG devices inherit the
// fault of their GPU.
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

// Prune returns a copy of the inventory without the GPUs and MIG devices whose fault is Gone, except those for which
// keep returns true. A GPU is kept while it has MIG devices.
func (inv *Inventory) Prune(keep func(uuid string) bool) *Inventory {
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

// OneLine returns the text of err, which may be a joined error, as a single line: the messages of faults are shown in
// tables, Events and RPC statuses.
func OneLine(err error) string { return strings.ReplaceAll(err.Error(), "\n", "; ") }
