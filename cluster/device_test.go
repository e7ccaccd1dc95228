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
			t.Errorf("%q is %d, want an error", text, got)
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

func TestCapacity(t *testing.T) {
	for _, tc := range []struct {
		got  Capacity
		want string
	}{
		{Bytes(0), "0"}, {Bytes(1), "1"}, {Bytes(80 << 30), "80Gi"}, {Bytes(81559 << 20), "81559Mi"},
		{Bytes(1 << 60), "1Ei"}, {Bytes(1<<30 + 1), "1073741825"},
		{Count(0), "0"}, {Count(132), "132"}, {Count(1000), "1k"}, {Count(16_000_000), "16M"}, {Count(1024), "1024"},
	} {
		if tc.got.Value != tc.want {
			t.Errorf("capacity %s, want %s", tc.got.Value, tc.want)
		}
	}
}
