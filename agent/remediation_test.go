package agent

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/gpucdi/gpucdi/allocator"
	"github.com/gpucdi/gpucdi/cluster"
	"github.com/gpucdi/gpucdi/config"
	"github.com/gpucdi/gpucdi/gpu"
	"github.com/gpucdi/gpucdi/gpu/driver"
)

var faultTime = time.Unix(1e9, 0)

func xidFault(xid int, since time.Time) gpu.Fault {
	return gpu.Fault{Code: gpu.XIDFault(xid), Message: "XID", Remedy: "reset it", Since: since}
}

// faultySnapshot returns a snapshot with two GPUs, the second one with MIG devices.
func faultySnapshot(first, second, mig gpu.Fault) *snapshot {
	s := newSnapshot()
	s.driver = &driver.Snapshot{}
	s.known = &gpu.Inventory{GPUs: []gpu.GPU{
		{UUID: "GPU-a", Index: 0, Fault: first},
		{UUID: "GPU-b", Index: 1, Fault: second, MIG: gpu.MIGEnabled, MIGDevices: []gpu.MIGDevice{{UUID: "MIG-a"}, {UUID: "MIG-b", Index: 1, Fault: mig}}},
	}}
	s.plan = &plan{deviceFaults: s.known, inventory: s.known}
	s.offers = []*allocator.Resource{}
	s.config.Config = config.Default()
	s.config.Remediation.NodeCondition, s.config.Remediation.Taint = true, config.NodeTaintNoSchedule
	return s
}

func TestMarks(t *testing.T) {
	none := gpu.Fault{}
	old := xidFault(48, faultTime)
	for name, tc := range map[string]struct {
		first, second, mig gpu.Fault
		after              time.Duration
		taint              string
		message            []string // of a False condition
		due                time.Duration
	}{
		"healthy":                 {},
		"not long enough":         {first: old, after: 2*time.Minute - 1, due: 2 * time.Minute},
		"long enough":             {first: old, after: 2 * time.Minute, taint: "xid_48", message: []string{"GPU 0 (GPU-a): XID; reset it"}},
		"one of two":              {first: old, second: xidFault(79, faultTime.Add(time.Minute)), after: 2 * time.Minute, taint: "xid_48", message: []string{"GPU-a"}, due: 3 * time.Minute},
		"the longest comes first": {first: xidFault(79, faultTime.Add(time.Minute)), mig: old, after: time.Hour, taint: "xid_48", message: []string{"GPU 1:1 (MIG-b): XID", "GPU 0 (GPU-a)"}},
		"cordoned":                {first: gpu.Fault{Code: gpu.FaultCordoned, Since: faultTime}, after: time.Hour},
		"config":                  {first: gpu.Fault{Code: gpu.FaultConfig, Since: faultTime}, after: time.Hour},
		"transient":               {first: xidFault(9999, faultTime), after: time.Hour},
		"unknown start":           {first: xidFault(48, time.Time{}), second: none, after: time.Hour},
	} {
		s := faultySnapshot(tc.first, tc.second, tc.mig)
		want, due, known := s.marks(faultTime.Add(tc.after))
		if !known {
			t.Errorf("%s: unknown", name)
			continue
		}
		taint := ""
		if want.Taint != nil {
			taint = want.Taint.Value
		}
		if taint != tc.taint || want.Condition.Healthy != (tc.taint == "") {
			t.Errorf("%s: taint %q, condition %+v", name, taint, want.Condition)
		}
		for _, m := range tc.message {
			if !strings.Contains(want.Condition.Message, m) {
				t.Errorf("%s: message %q lacks %q", name, want.Condition.Message, m)
			}
		}
		if wantDue := faultTime.Add(tc.due); tc.due == 0 && !due.IsZero() || tc.due != 0 && !due.Equal(wantDue) {
			t.Errorf("%s: due %s, want %s", name, due, wantDue)
		}
	}
}

// Faults of excluded GPUs do not count, also in MIG mode.
func TestMarksOfExcludedGPUs(t *testing.T) {
	for _, strategy := range []allocator.MIGStrategy{allocator.MIGNone, allocator.MIGSingle, allocator.MIGMixed} {
		s := faultySnapshot(gpu.Fault{}, xidFault(48, faultTime), xidFault(48, faultTime))
		s.config.MIG.Strategy = strategy
		s.config.Resources = allocator.Rules{{Select: allocator.Selector{UUID: []string{"GPU-b"}}, Exclude: true}}
		if want, _, _ := s.marks(faultTime.Add(time.Hour)); want.Taint != nil || !want.Condition.Healthy {
			t.Errorf("%s: taint %v, condition %+v", strategy, want.Taint, want.Condition)
		}
	}
}

// While a fault of the node replaces the faults of devices in the offers, the marks can result from either.
func TestMarksDuringDriverFault(t *testing.T) {
	s := faultySnapshot(xidFault(48, faultTime), gpu.Fault{}, gpu.Fault{})
	failed := gpu.Fault{Code: gpu.FaultDriver, Message: "the driver worker hangs", Since: faultTime.Add(time.Hour)}
	s.driver = &driver.Snapshot{Err: errors.New("the driver worker hangs")}
	s.plan.inventory = s.known.WithFaults(uniformFault(failed))
	s.offers = []*allocator.Resource{{Devices: []allocator.Device{{ID: "GPU-a", GPU: "GPU-a", Index: "0", Fault: failed}}}}
	now := faultTime.Add(24 * time.Hour)
	if want, _, known := s.marks(now); !known || want.Taint == nil || want.Taint.Value != "xid_48" {
		t.Errorf("marks %+v, known %v", want, known)
	}
	s.config.Remediation.Faults = append(s.config.Remediation.Faults, "driver")
	s.plan.deviceFaults = &gpu.Inventory{GPUs: []gpu.GPU{{UUID: "GPU-a"}}}
	if want, _, _ := s.marks(now); want.Taint == nil || want.Taint.Value != "driver" {
		t.Errorf("with driver selected: marks %+v", want)
	}
}

func TestMarksAreKeptOrRemoved(t *testing.T) {
	faulty := func() *snapshot { return faultySnapshot(xidFault(48, faultTime), gpu.Fault{}, gpu.Fault{}) }
	now := faultTime.Add(time.Hour)
	for name, tc := range map[string]struct {
		change func(*snapshot)
		known  bool
	}{
		"driver not read":    {func(s *snapshot) { s.driver = nil }, false},
		"nothing advertised": {func(s *snapshot) { s.offers = nil }, false},
		"no valid config": {func(s *snapshot) {
			s.config.Config, s.config.fault = config.Default(), gpu.Fault{Code: gpu.FaultConfig}
		}, false},
		"disabled":            {func(s *snapshot) { s.config.Remediation = config.Default().Remediation }, true},
		"a node without GPUs": {func(s *snapshot) { s.known, s.plan = &gpu.Inventory{}, newSnapshot().plan }, true},
		"excluded": {func(s *snapshot) {
			s.config.Resources = allocator.Rules{{Select: allocator.Selector{UUID: []string{"GPU-a"}}, Exclude: true}}
			s.config.Remediation.NodeCondition = false
		}, true},
	} {
		s := faulty()
		tc.change(s)
		if want, _, known := s.marks(now); known != tc.known || want != (cluster.Marks{}) {
			t.Errorf("%s: marks %+v, known %v", name, want, known)
		}
	}
}
