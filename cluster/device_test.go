package cluster

import "testing"

func TestParseQuantity(t *testing.T) {
	for text, want := range map[string]uint64{
		"0": 0, "100": 100, "2k": 2000, "20Gi": 20 << 30, "40448Mi": 40448 << 20, "1Ei": 1 << 60, "18446744073709551615": 1<<64 - 1,
	} {
		if got, err := ParseQuantity(text); err != nil || got != want {
			t.Errorf("%q is %d, error %v, want %d", text, got, err, want)
		}
	}
	for _, text := range []string{"", "Gi", "-1", "1.5Gi", "500m", "1Xi", "1iG", "1KGi", "16Ei", "18446744073709551616", "1 Gi", "1e3"} {
		if got, err := ParseQuantity(text); err == nil {
			t.Errorf("%q is %d", text, got)
		}
	}
	for _, n := range []uint64{0, 1, 1000, 1024, 1536, 100, 81559 << 20, 3 << 40} {
		for _, c := range []Capacity{Bytes(n), Count(n)} {
			if got, err := ParseQuantity(c.Value); err != nil || got != n {
				t.Errorf("%s of %d is %d, error %v", c.Value, n, got, err)
			}
		}
	}
}
