package config_test

import (
	"strings"
	"testing"

	"github.com/gpucdi/gpucdi/config"
)

func TestMonitoring(t *testing.T) {
	for text, want := range map[string]string{
		"{resource: nvidia.com/gpu-monitor}":           "",
		"{resource: nvidia.com/gpu-monitor, count: 8}": "",
		"{count: 8}":                                "",
		"{resource: gpu-monitor}":                   `monitoring.resource: want a resource name such as nvidia.com/gpu-monitor, got "gpu-monitor": it has no domain`,
		"{resource: nvidia.com/gpu}":                "monitoring.resource: want a name that no GPU or MIG device has",
		"{resource: nvidia.com/mig-1g.5gb}":         "monitoring.resource: want a name that no GPU or MIG device has",
		"{resource: nvidia.com/h100}":               "monitoring.resource: want a name that no GPU or MIG device has",
		"{resource: nvidia.com/gpu.shared}":         "monitoring.resource: want a name that no GPU or MIG device has",
		"{resource: example.com/m, count: 0}":       "monitoring.count: want 1 to 1000, got 0",
		"{resource: example.com/m, count: 1001}":    "monitoring.count: want 1 to 1000, got 1001",
		"{resource: example.com/m, count: several}": "monitoring.count: want an integer",
	} {
		_, err := config.Parse([]byte("monitoring: " + text + `
resources:
- {select: {index: [0]}, name: nvidia.com/h100}
- {name: nvidia.com/gpu, replicas: 2, rename: nvidia.com/gpu.shared}
`))
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got error %v, want %q", text, err, want)
		}
	}
}
