package driver

import (
	"github.com/gpucdi/gpucdi/gpu"
	"github.com/gpucdi/gpucdi/gpu/health"
	"github.com/gpucdi/gpucdi/internal/host"
)

// Report is about the driver and its GPUs: a Reading, Probes, Telemetry, an XID,
// or Trouble.
type Report interface{ report() }

// Reading is the state of the node's driver.
type Reading struct {
	Inventory *gpu.Inventory  // nil when Err is set
	Driver    host.DriverRoot // where the driver was found
	Probes    Probes          // of its GPUs; nil when there are none

	// Err says why there is no inventory. A *host.NoDriverError means that the
	// node has no driver, which is a state, not a failure.
	Err error
}

// Probes are the results of probing GPUs, by UUID.
type Probes map[string]health.Probe

// Telemetry is what GPUs measured of themselves, by UUID.
type Telemetry map[string]gpu.Telemetry

// XID is an error event of a GPU.
type XID struct {
	GPU  string   // its UUID
	MIG  []string `json:",omitempty"` // the MIG devices that it is about, by UUID; none: the whole GPU
	Code int

	// Times is how often it was repeated since the last report; 0 is once.
	Times int `json:",omitempty"`
}

// Trouble is a call into the driver that did not come back, or ended the
// process that made it.
type Trouble struct {
	GPU   string // the UUID of the one that it was about; empty: it was about none, and any can be why
	Fault gpu.Fault
}

func (Reading) report()   {}
func (Probes) report()    {}
func (Telemetry) report() {}
func (XID) report()       {}
func (Trouble) report()   {}
