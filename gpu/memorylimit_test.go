package gpu_test

import (
	"slices"
	"testing"

	"github.com/gpucdi/gpucdi/gpu"
)

func TestMemoryLimitReasons(t *testing.T) {
	limits := func(all ...gpu.MemoryLimits) (gpus []gpu.GPU) {
		for i, l := range all {
			gpus = append(gpus, gpu.GPU{Index: i, MemoryLimits: l})
		}
		return gpus
	}
	old, mig := gpu.MemoryLimitsOldDriver.Reason(), gpu.MemoryLimitsMIG.Reason()
	for name, tc := range map[string]struct {
		gpus []gpu.GPU
		want []string
	}{
		"no GPU":    {nil, nil},
		"supported": {limits(gpu.MemoryLimitsSupported, gpu.MemoryLimitsSupported), nil},
		"unknown":   {limits(""), nil},
		"all":       {limits(gpu.MemoryLimitsOldDriver, gpu.MemoryLimitsOldDriver), []string{old}},
		"some":      {limits(gpu.MemoryLimitsMIG, gpu.MemoryLimitsSupported, gpu.MemoryLimitsMIG), []string{"GPU 0, 2: " + mig}},
	} {
		tc.gpus = append(tc.gpus, gpu.GPU{MemoryLimits: gpu.MemoryLimitsCgroupV1, Fault: gpu.Gone()})
		if got := gpu.MemoryLimitReasons(tc.gpus); !slices.Equal(got, tc.want) {
			t.Errorf("%s: got %q, want %q", name, got, tc.want)
		}
	}
}

func TestIsMemoryLimit(t *testing.T) {
	const set = 10 * gpu.MinMemoryLimit
	for reported, want := range map[uint64]bool{
		set: true, set - 1: true, set - gpu.MinMemoryLimit + 1: true, set - gpu.MinMemoryLimit: false, set + 1: false, gpu.MemoryUnlimited: false, 0: false,
	} {
		if got := gpu.IsMemoryLimit(reported, set); got != want {
			t.Errorf("%d of %d: %t", reported, uint64(set), got)
		}
	}
}
