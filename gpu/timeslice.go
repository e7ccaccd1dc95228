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

// TimeSlices are the time slices in the order of nvidia-smi's numbers for them, which start at 0.
var TimeSlices = []TimeSlice{TimeSliceDefault, TimeSliceShort, TimeSliceMedium, TimeSliceLong}
