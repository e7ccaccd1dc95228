package cdi

import "testing"

func FuzzParseMajors(f *testing.F) {
	f.Add([]byte("Character devices:\n195 nvidia\n511 nvidia-uvm\n\nBlock devices:\n  8 sd\n"))
	f.Add([]byte("195\n nvidia 195\n-1 x\n99999999999999999999 y\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		for name, major := range parseMajors(data) {
			if major <= 0 {
				t.Errorf("%q has major %d", name, major)
			}
		}
	})
}
