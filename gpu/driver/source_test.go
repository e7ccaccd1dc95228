package driver

import (
	"reflect"
	"testing"

	"github.com/gpucdi/gpucdi/gpu"
)

func TestDoubtedGPUsStayInTheInventory(t *testing.T) {
	s := &source{
		doubted: map[int]string{1: "unresponsive"},
		latest:  &gpu.Inventory{GPUs: []gpu.GPU{{UUID: "GPU-a", Index: 0}, {UUID: "GPU-b", Index: 1, Minor: 7}}},
	}
	got := s.complete(&gpu.Inventory{GPUs: []gpu.GPU{{UUID: "GPU-a", Index: 0}}})
	want := []gpu.GPU{{UUID: "GPU-a", Index: 0}, {UUID: "GPU-b", Index: 1, Minor: 7, Fault: "unresponsive"}}
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
		doubted: map[int]string{},
		latest:  &gpu.Inventory{GPUs: []gpu.GPU{{UUID: "GPU-a", Index: 0}, {UUID: "GPU-b", Index: 1}}},
		yield:   func(r Report) { reports = append(reports, r) },
	}
	cause := errTest("hangs")
	if err := s.trouble(1, cause); err != nil || s.doubted[1] != "hangs" {
		t.Errorf("error %v, in doubt %v", err, s.doubted)
	}
	if want := []Report{Trouble{GPU: "GPU-b", Reason: "hangs"}}; !reflect.DeepEqual(reports, want) {
		t.Errorf("reports %v, want %v", reports, want)
	}
	reports = nil
	err := s.trouble(Nobody, cause)
	if want := []Report{Trouble{Reason: "hangs"}}; err == nil || !reflect.DeepEqual(reports, want) {
		t.Errorf("trouble about nobody: error %v, reports %v, want %v", err, reports, want)
	}
}

// A GPU that holds up the very first look at it keeps no other from being known.
func TestAGPUCanBeDoubtedBeforeItIsKnown(t *testing.T) {
	s := &source{doubted: map[int]string{}, yield: func(r Report) { t.Errorf("yielded %v", r) }}
	if err := s.trouble(1, errTest("hangs")); err != nil {
		t.Error(err)
	}
	got := s.complete(&gpu.Inventory{GPUs: []gpu.GPU{{UUID: "GPU-a", Index: 0}}})
	if want := []gpu.Unreadable{{Index: 1, Fault: "hangs"}}; len(got.GPUs) != 1 || !reflect.DeepEqual(got.Unreadable, want) {
		t.Errorf("got %+v", got)
	}
}

type errTest string

func (e errTest) Error() string { return string(e) }
