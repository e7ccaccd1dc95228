package driver

import "testing"

func TestMarker(t *testing.T) {
	m, err := newMarker()
	if err != nil {
		t.Fatal(err)
	}
	defer m.file.Close()
	if got := m.get(); got.Index != Nobody {
		t.Errorf("a new marker is about %d", got.Index)
	}
	for _, want := range []Mark{{1, 0}, {2, 15}, {1 << 31, Nobody}} {
		if err := m.Set(want); err != nil {
			t.Fatal(err)
		}
		if got := m.get(); got != want {
			t.Errorf("got %+v, want %+v", got, want)
		}
	}
}
