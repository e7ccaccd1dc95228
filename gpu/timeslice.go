package gpu

// TimeSlice is how long each process that shares a GPU runs before it is the next one's turn, as nvidia-smi and the
// parameters of claims name it.
type TimeSlice string

// The time slices. The driver decides how long each is.
const (
	TimeSliceDefault TimeSlice = "Default"
	TimeSliceShort   TimeSlice = "Short"
	TimeSliceMedium  TimeSlice = "Medium"
	TimeSliceLong    TimeSlice = "Long"
)

// TimeSlices has the time slices in the order of the numbers that nvidia-smi gives them, from 0.
var TimeSlices = []TimeSlice{TimeSliceDefault, TimeSliceShort, TimeSliceMedium, TimeSliceLong}
