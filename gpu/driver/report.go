package driver

import (
	"github.com/gpucdi/gpucdi/gpu"
	"github.com/gpucdi/gpucdi/gpu/health"
	"github.com/gpucdi/gpucdi/internal/host"
)

// Report is a Snapshot, Probes, Telemetry, an XID or a Failure.
type Report interface{ report() }

// Snapshot is the state of the node's driver at one point in time.
type Snapshot struct {
	Inventory *gpu.Inventory  // nil if Err is set
	Driver    host.DriverRoot // zero if Err is set
	Probes    Probes          // of the inventory's GPUs, except quarantined ones

	// Err is the reason that there is no inventory: a *host.NoDriverError if the node has no driver.
	Err error
}

// Probes are the latest probes of GPUs, by UUID.
type Probes map[string]health.Probe

// Telemetry are the latest measurements of GPUs, by UUID.
type Telemetry map[string]gpu.Telemetry

// XID is an XID error event.
type XID struct {
	GPU  string   // UUID
	MIG  []string `json:",omitempty"` // UUIDs of the affected MIG devices; none: the whole GPU
	Code int

	// Times is the number of occurrences that this report aggregates; 0 means one.
	Times int `json:",omitempty"`
}

// Failure is a call into the driver that hung or crashed the worker.
type Failure struct {
	GPU   string // UUID of the GPU that caused it; if empty, the failure affects all GPUs
	Fault gpu.Fault
}

func (Snapshot) report()  {}
func (Probes) report()    {}
func (Telemetry) report() {}
func (XID) report()       {}
func (Failure) report()   {}
