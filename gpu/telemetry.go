package gpu

// Telemetry is what a GPU measures of itself at one moment. A nil field is one
// that the GPU or its driver does not tell.
type Telemetry struct {
	Utilization    *float64 `json:"utilization,omitempty"` // of the time, 0 to 1
	MemoryUsed     *uint64  `json:"memoryUsedBytes,omitempty"`
	Temperature    *float64 `json:"temperatureCelsius,omitempty"`
	Power          *float64 `json:"powerWatts,omitempty"`
	SMClock        *float64 `json:"smClockHertz,omitempty"`
	MemoryClock    *float64 `json:"memoryClockHertz,omitempty"`
	ECCCorrected   *uint64  `json:"eccCorrected,omitempty"` // errors since the driver was loaded or the GPU reset
	ECCUncorrected *uint64  `json:"eccUncorrected,omitempty"`
}
