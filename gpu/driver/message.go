package driver

import (
	"time"

	"github.com/gpucdi/gpucdi/gpu"
)

// Message is one line of JSON from the process that holds the driver to the
// agent.
type Message struct {
	Inventory *gpu.Inventory `json:"inventory,omitempty"`
	Probes    Probes         `json:"probes,omitempty"`
	Telemetry Telemetry      `json:"telemetry,omitempty"`
	XID       *XID           `json:"xid,omitempty"`

	// Waits is for how long there may be silence now, while the process waits
	// for events.
	Waits time.Duration `json:"waits,omitempty"`

	// Failed ends the process: what keeps the driver from being read.
	Failed string `json:"failed,omitempty"`
}
