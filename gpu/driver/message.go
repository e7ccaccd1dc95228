package driver

import "github.com/gpucdi/gpucdi/gpu"

// Message is one line of JSON from the driver worker to the agent.
type Message struct {
	Inventory *gpu.Inventory `json:"inventory,omitempty"`
	Probes    Probes         `json:"probes,omitempty"` // of all GPUs that are not doubted
	Telemetry Telemetry      `json:"telemetry,omitempty"`
	XID       *XID           `json:"xid,omitempty"`

	// Round is set when every GPU that is not doubted was probed since the last round.
	Round bool `json:"round,omitempty"`

	// Failed is why the driver cannot be read. The worker ends after it.
	Failed string `json:"failed,omitempty"`
}

// messageLimit bounds a Message. The inventory of MaxGPUs GPUs with all their links and MIG devices
// takes about half of it.
const messageLimit = 16 << 20
