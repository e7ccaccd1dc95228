package simdriver_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/gpucdi/gpucdi/test/simdriver"
)

func install(t *testing.T, p simdriver.Profile) *simdriver.Driver {
	t.Helper()
	d, err := simdriver.Install(t.TempDir(), p)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// smi runs the driver's nvidia-smi and returns what it printed.
func smi(t *testing.T, d *simdriver.Driver, args ...string) string {
	t.Helper()
	out, err := d.Command("nvidia-smi", args...).CombinedOutput()
	if err != nil {
		t.Fatalf("nvidia-smi %v: %v\n%s", args, err, out)
	}
	return string(out)
}

func TestEveryProfileListsItsGPUs(t *testing.T) {
	for _, tc := range []struct {
		profile simdriver.Profile
		gpus    int
		mig     int
	}{
		{simdriver.H100x8(), 8, 0},
		{simdriver.A100MIG(), 8, 20},
		{simdriver.PCIe4(), 4, 0},
		{simdriver.GTX1060x2(), 2, 0},
		{simdriver.GPUs16(), 16, 0},
	} {
		t.Run(tc.profile.Name, func(t *testing.T) {
			d := install(t, tc.profile)
			var want []string
			for i, g := range d.State().GPUs {
				want = append(want, fmt.Sprintf("GPU %d: %s (UUID: %s)", i, g.Name, g.UUID))
			}
			lines := strings.Split(strings.TrimSpace(smi(t, d, "-L")), "\n")
			mig := 0
			lines = slices.DeleteFunc(lines, func(line string) bool {
				if strings.HasPrefix(line, "  MIG ") {
					mig++
					return true
				}
				return false
			})
			if !slices.Equal(lines, want) || len(want) != tc.gpus {
				t.Errorf("nvidia-smi -L lists %d GPUs:\n%s\nwant %d:\n%s", len(lines), strings.Join(lines, "\n"), tc.gpus, strings.Join(want, "\n"))
			}
			if mig != tc.mig {
				t.Errorf("nvidia-smi -L lists %d MIG devices, want %d", mig, tc.mig)
			}
		})
	}
}
