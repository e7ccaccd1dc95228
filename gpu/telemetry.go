package gpu

import "iter"

// Telemetry contains a GPU's measurements at one point in time. Nil fields and missing map keys are not supported by
// the GPU or the driver, or could not be read.
type Telemetry struct {
	Utilization        *float64 `json:"utilization,omitempty"`        // fraction of time in which a kernel ran, 0 to 1
	MemoryUtilization  *float64 `json:"memoryUtilization,omitempty"`  // fraction of time in which memory was accessed
	EncoderUtilization *float64 `json:"encoderUtilization,omitempty"` // fraction of time
	DecoderUtilization *float64 `json:"decoderUtilization,omitempty"` // fraction of time

	MemoryUsed        *uint64  `json:"memoryUsedBytes,omitempty"`
	Temperature       *float64 `json:"temperatureCelsius,omitempty"`
	MemoryTemperature *float64 `json:"memoryTemperatureCelsius,omitempty"`
	FanSpeed          *float64 `json:"fanSpeed,omitempty"` // fraction of the maximum, which it may exceed
	Power             *float64 `json:"powerWatts,omitempty"`
	PowerLimit        *float64 `json:"powerLimitWatts,omitempty"`
	Energy            *float64 `json:"energyJoules,omitempty"` // since the last driver load
	SMClock           *float64 `json:"smClockHertz,omitempty"`
	MemoryClock       *float64 `json:"memoryClockHertz,omitempty"`

	ClocksEvents     *ClocksEvents     `json:"clocksEvents,omitempty"`
	ClocksEventTimes map[string]uint64 `json:"clocksEventNanoseconds,omitempty"` // ns since the last driver load, by reason
	Activity         Activity          `json:"activity,omitzero"`

	ECCCorrected   *uint64 `json:"eccCorrected,omitempty"` // volatile: since the last driver load or GPU reset
	ECCUncorrected *uint64 `json:"eccUncorrected,omitempty"`

	RecoveryAction string            `json:"recoveryAction,omitempty"` // "none", "reset", …; empty if not supported
	RemappedRows   map[string]uint64 `json:"remappedRows,omitempty"`   // over the life of the GPU, by cause
	RemapPending   *bool             `json:"remapPending,omitempty"`   // a row is remapped at the next reset
	RemapFailed    *bool             `json:"remapFailed,omitempty"`    // a row was not remapped, since no spare rows are left
	RetiredPages   map[string]uint64 `json:"retiredPages,omitempty"`   // over the life of the GPU, by cause

	PCIe   Traffic `json:"pcie,omitzero"`
	NVLink Traffic `json:"nvlink,omitzero"` // of all links

	MIG map[string]MIGTelemetry `json:"mig,omitempty"` // by UUID of the MIG device

	// Usage is nil if the processes are unknown or have too many cgroups.
	Usage *Usage `json:"usage,omitempty"`
}

// Activity is the utilization of a GPU's units in the latest probe interval, as fractions of their maximum.
type Activity struct {
	SM              *float64 `json:"sm,omitempty"`              // SMs with at least one warp
	Occupancy       *float64 `json:"occupancy,omitempty"`       // resident warps
	Tensor          *float64 `json:"tensor,omitempty"`          // tensor cores
	MemoryBandwidth *float64 `json:"memoryBandwidth,omitempty"` // reads and writes of the GPU's memory
}

// Traffic is the traffic of an interconnect. Bytes are counted since the last driver load; rates are averages of the
// latest probe interval, in bytes per second. A GPU may support byte counters, rates, both or neither.
type Traffic struct {
	TransmittedBytes *uint64           `json:"transmittedBytes,omitempty"`
	ReceivedBytes    *uint64           `json:"receivedBytes,omitempty"`
	TransmitRate     *float64          `json:"transmitRate,omitempty"`
	ReceiveRate      *float64          `json:"receiveRate,omitempty"`
	Errors           map[string]uint64 `json:"errors,omitempty"` // by kind
}

// MIGTelemetry contains the measurements of a MIG device.
type MIGTelemetry struct {
	MemoryUsed *uint64 `json:"memoryUsedBytes,omitempty"`
}

// Usage is the usage of a GPU and its MIG devices by processes, summed by cgroup.
type Usage struct {
	Cgroups     []CgroupUsage `json:"cgroups"`
	Utilization bool          `json:"utilization"` // whether the driver reports the utilization of each process
}

// CgroupUsage is the usage of a GPU or MIG device by the processes of one cgroup.
type CgroupUsage struct {
	Device      string  `json:"device"`                    // UUID of the GPU or MIG device
	Cgroup      string  `json:"cgroup"`                    // path on the node
	MemoryUsed  *uint64 `json:"memoryUsedBytes,omitempty"` // nil if the driver does not report it
	Utilization float64 `json:"utilization,omitempty"`     // fraction of time in which their kernels ran, 0 to 1
}

// ClocksEvents are the reasons that determine a GPU's clock frequency, as NVML's bit mask.
type ClocksEvents uint64

// clocksEventReasons are the names of the bits, from the lowest.
var clocksEventReasons = []string{"idle", "applications_clocks", "sw_power_cap", "hw_slowdown", "sync_boost", "sw_thermal",
	"hw_thermal", "hw_power_brake", "display_clock", "board_limit", "reliability"}

// Reasons yields the name of each reason and whether it is in effect.
func (e ClocksEvents) Reasons() iter.Seq2[string, bool] {
	return func(yield func(string, bool) bool) {
		for bit, name := range clocksEventReasons {
			if !yield(name, e>>bit&1 == 1) {
				return
			}
		}
	}
}
