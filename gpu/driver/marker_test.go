package driver

import (
	"reflect"
	"testing"
)

func TestMarker(t *testing.T) {
	m, err := newMarker()
	if err != nil {
		t.Fatal(err)
	}
	defer m.file.Close()
	if got := m.steps(); got != nil {
		t.Errorf("a new marker holds %+v", got)
	}
	want := []Step{
		{Index: Nobody, Begin: 1 << 62},
		{Index: 0, Begin: 1, Back: true},
		{Index: MaxGPUs - 1, Begin: 2},
		{Index: 0, Begin: 3, Trial: true},
		{Index: MaxGPUs - 1, Begin: 4, Trial: true, Back: true},
	}
	for _, s := range want {
		if err := m.Set(s); err != nil {
			t.Fatal(err)
		}
	}
	if got := m.steps(); !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
	want[0] = Step{Index: Nobody, Begin: 5, Back: true}
	if err := m.Set(want[0]); err != nil {
		t.Fatal(err)
	}
	if got := m.steps(); !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
}

func TestClockGoesOn(t *testing.T) {
	earlier := Clock()
	if now := Clock(); earlier <= 0 || now < earlier {
		t.Errorf("the clock shows %s, then %s", earlier, now)
	}
}
