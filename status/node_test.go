package status_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/gpucdi/gpucdi/gpu"
	"github.com/gpucdi/gpucdi/status"
)

func TestDeviceHealth(t *testing.T) {
	fault := gpu.Fault{Code: "xid_79"}
	for want, d := range map[status.Health]status.Device{
		status.Healthy:   {},
		status.Unhealthy: {Fault: fault},
		status.Waiting:   {State: status.Waiting},
		status.Draining:  {State: status.Draining},
	} {
		if got := d.Health(); got != want || d.Healthy() != (want == status.Healthy) {
			t.Errorf("health of %+v is %s, want %s", d, got, want)
		}
		d.ID = "GPU-a"
		data, err := json.Marshal(status.Node{Devices: []status.Device{d}})
		if err != nil {
			t.Fatal(err)
		}
		for _, field := range []string{`"health":"` + string(want) + `"`, `"id":"GPU-a"`} {
			if !strings.Contains(string(data), field) {
				t.Errorf("%s lacks %s", data, field)
			}
		}
	}
}
