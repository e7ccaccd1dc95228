package gpu

// TimeSlice is how long a process that shares a GPU runs before the next one takes its turn. The names are those of
// nvidia-smi and of the DRA claim parameters.
type TimeSlice string

// The time slices. The driver decides how long each is.
const (
	TimeSliceDefault TimeSlice = "Default"
	TimeSliceShort   TimeSlice = "Short"
	TimeSliceMedium  TimeSlice = "Medium"
	TimeSliceLong    TimeSlice = "Long"
)

// TimeSlices contains the time slices. The index of each is its number in nvidia-smi.
var TimeSlices = []TimeSlice{TimeSliceDefault, TimeSliceShort, TimeSliceMedium, TimeSliceLong}
