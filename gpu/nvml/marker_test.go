package nvml

import "testing"

func TestMarker(t *testing.T) {
	m, err := newMarker()
	if err != nil {
		t.Fatal(err)
	}
	defer m.file.Close()
	if got := m.get(); got.index != nobody {
		t.Errorf("a new marker is about %d", got.index)
	}
	for _, want := range []mark{{1, 0}, {2, 15}, {1 << 31, nobody}} {
		if err := m.set(want); err != nil {
			t.Fatal(err)
		}
		if got := m.get(); got != want {
			t.Errorf("got %+v, want %+v", got, want)
		}
	}
}
