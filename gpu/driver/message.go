package driver

import "github.com/gpucdi/gpucdi/gpu"

// Message is one line of JSON from the driver worker to gpucdi.
type Message struct {
	Inventory *gpu.Inventory `json:"inventory,omitempty"`
	Probes    Probes         `json:"probes"` // of all GPUs that are not quarantined; nil: not in this message, empty: no such GPU
	Telemetry Telemetry      `json:"telemetry,omitempty"`
	XID       *XID           `json:"xid,omitempty"`

	Reply *Reply `json:"reply,omitempty"` // to a Command

	// Cycle marks the end of a probe cycle: every GPU that is not quarantined was probed and, if it responds, measured.
	Cycle bool `json:"cycle,omitempty"`

	// Failed is the error that ends the worker. No message follows.
	Failed string `json:"failed,omitempty"`
}

// messageLimit is the maximum size of a Message in bytes. An inventory of MaxGPUs GPUs with all links and MIG devices,
// or their telemetry with MaxCgroups, takes less.
const messageLimit = 16 << 20

// Limits of gpu.Usage.
const (
	MaxCgroups      = 64  // of each GPU
	CgroupPathLimit = 512 // bytes
)
