package health_test

import (
	"testing"

	"github.com/gpucdi/gpucdi/gpu"
	"github.com/gpucdi/gpucdi/gpu/health"
)

func TestSelects(t *testing.T) {
	policy := health.Policy{Ignore: []int{46}, Fatal: []int{31}}
	for _, tc := range []struct {
		selector health.Selector
		code     gpu.FaultCode
		want     bool
	}{
		{"reset", "xid_48", true},
		{"reset", "xid_46", false}, // the policy ignores it
		{"fatal", "xid_31", true},
		{"fatal", "xid_79", true},
		{"transient", "xid_9999", true},
		{"transient", "xid_48", false},
		{"xid_48", "xid_48", true},
		{"xid_48", "xid_4", false},
		{"ecc", gpu.FaultECC, true},
		{"ecc", gpu.FaultGone, false},
		{"reset", gpu.FaultECC, false},
		{"cordoned", gpu.FaultCordoned, false},
		{"config", gpu.FaultConfig, false},
	} {
		if got := policy.Selects([]health.Selector{"spec", tc.selector}, tc.code); got != tc.want {
			t.Errorf("%s selects %s: %v, want %v", tc.selector, tc.code, got, tc.want)
		}
	}
	for _, code := range []gpu.FaultCode{gpu.FaultCordoned, gpu.FaultConfig, gpu.FaultForeignHolder, gpu.FaultUnresponsive, "xid_9999", ""} {
		if policy.Selects(health.RequiringRepair(), code) {
			t.Errorf("%q is selected as requiring repair", code)
		}
	}
}

func TestSelectorValidate(t *testing.T) {
	for _, s := range append(health.RequiringRepair(), "transient", "xid_0", "xid_1000", "driver") {
		if err := s.Validate(); err != nil {
			t.Error(err)
		}
	}
	for _, s := range []health.Selector{"", "cordoned", "config", "foreign_holder", "ignore", "application", "xid_", "xid_-1", "xid_048", "xid_*", "ECC"} {
		if s.Validate() == nil {
			t.Errorf("accepted %q", s)
		}
	}
}
