package health

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/gpucdi/gpucdi/gpu"
)

// Selector selects faults by code, such as "ecc" or "xid_79", or all XID faults of a class: "transient", "reset" or
// "fatal".
type Selector string

// selectable are the fault codes that a Selector can name, besides those of XIDs. FaultConfig, FaultForeignHolder,
// FaultCordoned and FaultMPS are excluded, because they are not defects of the node.
var selectable = []gpu.FaultCode{
	gpu.FaultUnresponsive, gpu.FaultGone, gpu.FaultECC, gpu.FaultRepairPending, gpu.FaultRowsFailed, gpu.FaultRecoveryNeeded,
	gpu.FaultUnreadable, gpu.FaultDriver, gpu.FaultDeviceNode, gpu.FaultSpec,
}

// classes are the classes of XIDs that are faults.
var classes = []Class{Transient, Reset, Fatal}

// RequiringRepair returns selectors for the faults that last until the GPU is reset or replaced, or the node is
// rebooted.
func RequiringRepair() []Selector {
	return []Selector{Selector(Reset), Selector(Fatal), Selector(gpu.FaultGone), Selector(gpu.FaultECC), Selector(gpu.FaultRepairPending),
		Selector(gpu.FaultRowsFailed), Selector(gpu.FaultRecoveryNeeded)}
}

// Validate returns an error if the selector can select no fault.
func (s Selector) Validate() error {
	if _, isXID := xidOf(gpu.FaultCode(s)); isXID || slices.Contains(classes, Class(s)) || slices.Contains(selectable, gpu.FaultCode(s)) {
		return nil
	}
	return fmt.Errorf("want a class of XIDs (%v), xid_ followed by an XID, or one of %v, got %q", classes, selectable, string(s))
}

// Selects reports whether any of the selectors selects the fault code. The policy determines the classes of XIDs.
func (p Policy) Selects(selectors []Selector, code gpu.FaultCode) bool {
	return slices.ContainsFunc(selectors, func(s Selector) bool {
		xid, isXID := xidOf(code)
		return s.Validate() == nil && (s == Selector(code) || isXID && s == Selector(p.Class(xid)))
	})
}

// xidOf returns the XID of a fault code.
func xidOf(code gpu.FaultCode) (xid int, ok bool) {
	digits, ok := strings.CutPrefix(string(code), "xid_")
	xid, err := strconv.Atoi(digits)
	return xid, ok && err == nil && xid >= 0 && code == gpu.XIDFault(xid)
}
