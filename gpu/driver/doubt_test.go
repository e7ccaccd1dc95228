package driver

import (
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/gpucdi/gpucdi/gpu"
)

func TestDoubtedGPUsStayInTheInventory(t *testing.T) {
	s := &source{
		doubted: map[int]doubt{1: {fault("unresponsive"), 1}},
		latest:  &gpu.Inventory{GPUs: []gpu.GPU{{UUID: "GPU-a", Index: 0}, {UUID: "GPU-b", Index: 1, Minor: 7}}},
	}
	got := s.complete(&gpu.Inventory{GPUs: []gpu.GPU{{UUID: "GPU-a", Index: 0}}})
	want := []gpu.GPU{{UUID: "GPU-a", Index: 0}, {UUID: "GPU-b", Index: 1, Minor: 7, Fault: fault("unresponsive")}}
	if !reflect.DeepEqual(got.GPUs, want) {
		t.Errorf("got %+v, want %+v", got.GPUs, want)
	}

	// It answers: no more doubt.
	s.latest = got
	told := &gpu.Inventory{GPUs: []gpu.GPU{{UUID: "GPU-a", Index: 0}, {UUID: "GPU-b", Index: 1, Minor: 7}}}
	if got := s.complete(told); !reflect.DeepEqual(got.GPUs, told.GPUs) || len(s.doubted) != 0 {
		t.Errorf("got %+v, in doubt %v", got.GPUs, s.doubted)
	}
}

func TestTroubleBlamesOneGPUOrNobody(t *testing.T) {
	var reports []Report
	s := &source{
		doubted: map[int]doubt{},
		latest:  &gpu.Inventory{GPUs: []gpu.GPU{{UUID: "GPU-a", Index: 0}, {UUID: "GPU-b", Index: 1}}},
		yield:   func(r Report) { reports = append(reports, r) },
	}
	cause := errTest("hangs")
	if err := s.blame([]int{1}, cause); err != nil || s.doubted[1] != (doubt{fault("hangs"), 1}) {
		t.Errorf("error %v, in doubt %v", err, s.doubted)
	}
	if want := []Report{Trouble{GPU: "GPU-b", Fault: fault("hangs")}}; !reflect.DeepEqual(reports, want) {
		t.Errorf("reports %v, want %v", reports, want)
	}
	reports = nil
	err := s.blame([]int{Nobody}, cause)
	all := fault("hangs")
	all.Code = gpu.FaultDriver
	if want := []Report{Trouble{Fault: all}}; err == nil || !reflect.DeepEqual(reports, want) {
		t.Errorf("trouble about nobody: error %v, reports %v, want %v", err, reports, want)
	}
}

// A GPU that holds up the very first look at it keeps no other from being known.
func TestAGPUCanBeDoubtedBeforeItIsKnown(t *testing.T) {
	s := &source{doubted: map[int]doubt{}, yield: func(r Report) { t.Errorf("yielded %v", r) }}
	if err := s.blame([]int{1}, errTest("hangs")); err != nil {
		t.Error(err)
	}
	got := s.complete(&gpu.Inventory{GPUs: []gpu.GPU{{UUID: "GPU-a", Index: 0}}})
	if want := []gpu.Unreadable{{Index: 1, Fault: fault("hangs")}}; len(got.GPUs) != 1 || !reflect.DeepEqual(got.Unreadable, want) {
		t.Errorf("got %+v", got)
	}
}

type errTest string

func (e errTest) Error() string { return string(e) }

// While a worker hangs in the kernel, the trial that would be the next to hang there is not made.
func TestNoTrialBesideAWorkerThatHangsInTheKernel(t *testing.T) {
	s := &source{cfg: Config{Interval: time.Second}, doubted: map[int]doubt{1: {fault("hangs"), 1}}}
	if got, want := s.doubts(), []string{"--doubted", "1", "--trial-after", "1s"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	s.stuck = &process{}
	if got, want := s.doubts(), []string{"--doubted", "1", "--trial-after", "0s"}; !slices.Equal(got, want) {
		t.Errorf("beside such a worker: got %q, want %q", got, want)
	}
}

// The GPU that goes on ending workers does not keep another one from its trial.
func TestTheLeastDoubtedGPUIsTriedFirst(t *testing.T) {
	s := &source{cfg: Config{Interval: time.Second}, doubted: map[int]doubt{0: {fault("crashes"), 3}, 1: {fault("crashes"), 1}, 2: {fault("crashes"), 3}, 5: {fault("crashes"), 2}}}
	for range 20 { // the order of a map is not one
		if got, want := s.trialOrder(), []int{1, 5, 0, 2}; !slices.Equal(got, want) {
			t.Fatalf("got %v, want %v", got, want)
		}
	}
}

func fault(message string) gpu.Fault {
	return gpu.Fault{Code: gpu.FaultUnresponsive, Message: message, Remedy: gpu.RemedyKernelLog}
}
