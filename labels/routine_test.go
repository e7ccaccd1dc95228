package labels

import "testing"

func TestRoutine(t *testing.T) {
	base := map[string]string{"nvidia.com/gpu.count": "8", "nvidia.com/cuda.driver-version.full": "580.95.05"}
	for name, tc := range map[string]struct {
		before, after map[string]string
		want          bool
	}{
		"first":               {nil, base, false},
		"none":                {nil, nil, true},
		"driver upgraded":     {base, map[string]string{"nvidia.com/gpu.count": "8", "nvidia.com/cuda.driver-version.full": "590.10.01"}, true},
		"version added":       {base, map[string]string{"nvidia.com/gpu.count": "8", "nvidia.com/cuda.driver-version.full": "580.95.05", "nvidia.com/cuda.runtime.major": "13"}, true},
		"driver removed":      {base, nil, true},
		"GPU removed":         {base, map[string]string{"nvidia.com/gpu.count": "7", "nvidia.com/cuda.driver-version.full": "580.95.05"}, false},
		"GPU label added":     {base, map[string]string{"nvidia.com/gpu.count": "8", "nvidia.com/gpu.clique": "a.1", "nvidia.com/cuda.driver-version.full": "580.95.05"}, false},
		"GPU label removed":   {base, map[string]string{"nvidia.com/cuda.driver-version.full": "580.95.05"}, false},
		"both, in an upgrade": {base, map[string]string{"nvidia.com/gpu.count": "7", "nvidia.com/cuda.driver-version.full": "590.10.01"}, false},
	} {
		if got := Routine(tc.before, tc.after); got != tc.want {
			t.Errorf("%s: %t", name, got)
		}
	}
}
