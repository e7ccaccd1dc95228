package gpu

// Telemetry are a GPU's measurements at one point in time. A nil field is not supported by the GPU or the driver.
type Telemetry struct {
	Utilization    *float64 `json:"utilization,omitempty"` // fraction of time in which a kernel ran, 0 to 1
	MemoryUsed     *uint64  `json:"memoryUsedBytes,omitempty"`
	Temperature    *float64 `json:"temperatureCelsius,omitempty"`
	Power          *float64 `json:"powerWatts,omitempty"`
	SMClock        *float64 `json:"smClockHertz,omitempty"`
	MemoryClock    *float64 `json:"memoryClockHertz,omitempty"`
	ECCCorrected   *uint64  `json:"eccCorrected,omitempty"` // volatile: since the last driver load or GPU reset
	ECCUncorrected *uint64  `json:"eccUncorrected,omitempty"`
}
