package health

import (
	"os"
	"strings"
	"testing"
	"time"
)

func TestTheDocumentHasTheCategories(t *testing.T) {
	text, err := os.ReadFile("../../docs/health.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, category := range []string{unresponsive, gone, eccErrors, repairPending, rowsFailed, recoveryNeeded} {
		if !strings.Contains(string(text), " | `"+category+"` | ") {
			t.Errorf("docs/health.md does not tell the category %s", category)
		}
	}
}

// The category is that of the worst cause, whatever came last.
func TestCategory(t *testing.T) {
	two, reset := uint64(2), RecoveryReset
	for want, happen := range map[string]func(*Tracker){
		"xid_79":       func(h *Tracker) { h.Event("GPU", 79, time.Now()); h.Event("GPU", 9999, time.Now()) },
		"xid_9999":     func(h *Tracker) { h.Event("GPU", 9999, time.Now()) },
		unresponsive:   func(h *Tracker) { h.Probe("GPU", Probe{Fault: "no answer"}, time.Now()) },
		gone:           func(h *Tracker) { h.Gone("GPU", "gone", time.Now()) },
		eccErrors:      func(h *Tracker) { h.Probe("GPU", Probe{Uncorrected: &two}, time.Now()) },
		repairPending:  func(h *Tracker) { h.Probe("GPU", Probe{RepairPending: true}, time.Now()) },
		rowsFailed:     func(h *Tracker) { h.Probe("GPU", Probe{RowsFailed: true, RepairPending: true}, time.Now()) },
		recoveryNeeded: func(h *Tracker) { h.Probe("GPU", Probe{Recovery: &reset}, time.Now()) },
		"":             func(h *Tracker) { h.Event("GPU", 13, time.Now()) },
	} {
		h := Tracker{Quiet: time.Minute}
		happen(&h)
		if got := h.Health("GPU").Category; got != want {
			t.Errorf("the category is %q, want %q", got, want)
		}
	}
}
