package driver

import (
	"reflect"
	"testing"
)

func TestStepLog(t *testing.T) {
	l, err := newStepLog()
	if err != nil {
		t.Fatal(err)
	}
	defer l.file.Close()
	if got := l.steps(); got != nil {
		t.Errorf("a new step log has the steps %+v, want none", got)
	}
	want := []Step{
		{Index: NoGPU, Start: 1 << 62},
		{Index: 0, Start: 1, Done: true},
		{Index: MaxGPUs - 1, Start: 2},
		{Index: 0, Start: 3, Kind: Trial},
		{Index: MaxGPUs - 1, Start: 4, Kind: Trial, Done: true},
	}
	for _, s := range want {
		if err := l.Set(s); err != nil {
			t.Fatal(err)
		}
	}
	if got := l.steps(); !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
	want[0] = Step{Index: NoGPU, Start: 5, Done: true}
	if err := l.Set(want[0]); err != nil {
		t.Fatal(err)
	}
	if got := l.steps(); !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
}

func TestClockIsMonotonic(t *testing.T) {
	earlier := Clock()
	if now := Clock(); earlier <= 0 || now < earlier {
		t.Errorf("the clock went from %s to %s", earlier, now)
	}
}
