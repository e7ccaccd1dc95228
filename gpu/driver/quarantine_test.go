package driver

import (
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/gpucdi/gpucdi/gpu"
)

func TestQuarantinedGPUsStayInTheInventory(t *testing.T) {
	s := &source{
		quarantined: map[int]quarantineEntry{1: {fault("unresponsive"), 1}},
		latest:      &gpu.Inventory{GPUs: []gpu.GPU{{UUID: "GPU-a", Index: 0}, {UUID: "GPU-b", Index: 1, Minor: 7}}},
	}
	got := s.addQuarantined(&gpu.Inventory{GPUs: []gpu.GPU{{UUID: "GPU-a", Index: 0}}})
	want := []gpu.GPU{{UUID: "GPU-a", Index: 0}, {UUID: "GPU-b", Index: 1, Minor: 7, Fault: fault("unresponsive")}}
	if !reflect.DeepEqual(got.GPUs, want) {
		t.Errorf("got %+v, want %+v", got.GPUs, want)
	}

	// A GPU that the worker reads again leaves the quarantine.
	s.latest = got
	read := &gpu.Inventory{GPUs: []gpu.GPU{{UUID: "GPU-a", Index: 0}, {UUID: "GPU-b", Index: 1, Minor: 7}}}
	if got := s.addQuarantined(read); !reflect.DeepEqual(got.GPUs, read.GPUs) || len(s.quarantined) != 0 {
		t.Errorf("got %+v, want %+v; quarantined: %v, want none", got.GPUs, read.GPUs, s.quarantined)
	}
}

func TestFailureAffectsOneGPUOrAll(t *testing.T) {
	var reports []Report
	s := &source{
		quarantined: map[int]quarantineEntry{},
		latest:      &gpu.Inventory{GPUs: []gpu.GPU{{UUID: "GPU-a", Index: 0}, {UUID: "GPU-b", Index: 1}}},
		yield:       func(r Report) { reports = append(reports, r) },
	}
	cause := errTest("hangs")
	if err := s.quarantine([]int{1}, cause); err != nil || s.quarantined[1] != (quarantineEntry{fault("hangs"), 1}) {
		t.Errorf("error %v, quarantined: %v", err, s.quarantined)
	}
	if want := []Report{Failure{GPU: "GPU-b", Fault: fault("hangs")}}; !reflect.DeepEqual(reports, want) {
		t.Errorf("reports %v, want %v", reports, want)
	}
	reports = nil
	err := s.quarantine([]int{NoGPU}, cause)
	all := fault("hangs")
	all.Code = gpu.FaultDriver
	if want := []Report{Failure{Fault: all}}; err == nil || !reflect.DeepEqual(reports, want) {
		t.Errorf("failure about no GPU: error %v, reports %v, want %v", err, reports, want)
	}
}

// A GPU whose first call hangs must not affect the others.
func TestQuarantineOfUnknownGPU(t *testing.T) {
	s := &source{quarantined: map[int]quarantineEntry{}, yield: func(r Report) { t.Errorf("unexpected report %v", r) }}
	if err := s.quarantine([]int{1}, errTest("hangs")); err != nil {
		t.Error(err)
	}
	got := s.addQuarantined(&gpu.Inventory{GPUs: []gpu.GPU{{UUID: "GPU-a", Index: 0}}})
	if want := []gpu.Unreadable{{Index: 1, Fault: fault("hangs")}}; len(got.GPUs) != 1 || !reflect.DeepEqual(got.Unreadable, want) {
		t.Errorf("got %+v, want one GPU and unreadable %+v", got, want)
	}
}

// When the set of GPUs has changed, an index may belong to another GPU.
func TestQuarantineEndsWhenGPUsChange(t *testing.T) {
	s := &source{quarantined: map[int]quarantineEntry{}, yield: func(r Report) { t.Errorf("unexpected report %v", r) }}
	s.identify("GPUs a, b and c")
	s.latest = &gpu.Inventory{GPUs: []gpu.GPU{{UUID: "GPU-a", Index: 0}, {UUID: "GPU-b", Index: 1}, {UUID: "GPU-c", Index: 2}}}
	s.quarantined[0] = quarantineEntry{fault("hangs"), 1}
	s.identify("GPUs a, b and c")
	if len(s.quarantined) != 1 || s.latest == nil {
		t.Error("the quarantine ended although the GPUs are the same")
	}
	s.identify("GPUs b and c")
	if len(s.quarantined) > 0 {
		t.Errorf("quarantine %v", s.quarantined)
	}
	if err := s.quarantine([]int{1}, errTest("hangs")); err != nil { // now GPU-c
		t.Error(err)
	}
}

type errTest string

func (e errTest) Error() string { return string(e) }

func TestNoTrialsWhileAWorkerHangsInTheKernel(t *testing.T) {
	s := &source{cfg: Config{Interval: time.Second}, quarantined: map[int]quarantineEntry{1: {fault("hangs"), 1}}}
	if got, want := s.quarantineArgs(), []string{"--quarantined", "1", "--trial-after", "1s"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	s.stuck = &process{}
	if got, want := s.quarantineArgs(), []string{"--quarantined", "1", "--trial-after", "0s"}; !slices.Equal(got, want) {
		t.Errorf("with a stuck worker: got %q, want %q", got, want)
	}
}

func TestTrialOrder(t *testing.T) {
	s := &source{cfg: Config{Interval: time.Second}, quarantined: map[int]quarantineEntry{0: {fault("crashes"), 3}, 1: {fault("crashes"), 1}, 2: {fault("crashes"), 3}, 5: {fault("crashes"), 2}}}
	for range 20 { // map iteration order is random
		if got, want := s.trialOrder(), []int{1, 5, 0, 2}; !slices.Equal(got, want) {
			t.Fatalf("got %v, want %v", got, want)
		}
	}
}

func fault(message string) gpu.Fault {
	return gpu.Fault{Code: gpu.FaultUnresponsive, Message: message, Remedy: gpu.RemedyKernelLog}
}
