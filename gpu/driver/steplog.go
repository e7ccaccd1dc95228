package driver

import (
	"encoding/binary"
	"fmt"
	"io"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// StepLog is memory that the driver worker shares with gpucdi. The worker records the start and end of each step in it.
// gpucdi reads it only when a step may be overdue and after the worker has exited, so it causes little overhead while
// the driver responds.
type StepLog struct{ file *os.File }

// The file descriptors that the worker inherits. Messages have a separate pipe, because NVML may write to standard
// output.
const (
	stepLogFD  = 3
	messagesFD = 4
)

// NoGPU is the index of steps that are not about a particular GPU.
const NoGPU = -1

// MaxGPUs is the maximum number of GPUs on a node: the kernel driver has 256 minor numbers.
const MaxGPUs = 256

// Step is a sequence of a few calls into the driver. At most one step about NoGPU and one of each Kind about each GPU
// are in progress at a time.
type Step struct {
	Index int // of the GPU, or NoGPU
	Kind  Kind

	// Start is the start time by Clock; for a step that waits, the time at which the wait should end.
	Start time.Duration

	Done bool
}

// Kind is the purpose of a step.
type Kind int

// The kinds of steps.
const (
	Cycle   Kind = iota // part of a probe cycle
	Trial               // tests whether a quarantined GPU has recovered; the worker does not wait for it
	Setting             // a Command
	kinds   = iota
)

// Clock returns the kernel's monotonic time. Unlike the monotonic reading of a time.Time, it is comparable between
// processes.
func Clock() time.Duration {
	var now unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_MONOTONIC, &now) // supported by all kernels
	return time.Duration(now.Nano())
}

// A step log is an array of slots: one for NoGPU, and one of each Kind for each GPU. The value of a slot is the Start
// of its latest step, negated if the step is done; 0 if there was none.
const (
	slotSize = 8
	slots    = 1 + kinds*MaxGPUs
)

func newStepLog() (StepLog, error) {
	fd, err := unix.MemfdCreate("gpucdi-steplog", unix.MFD_CLOEXEC)
	if err != nil {
		return StepLog{}, fmt.Errorf("allocating memory shared with the driver worker: %w", err)
	}
	return StepLog{os.NewFile(uintptr(fd), "steplog")}, nil
}

// Inherited returns the step log and the write end of the message pipe, which the driver worker inherits from gpucdi.
// It sets close-on-exec on both, because programs that NVML starts may outlive the worker.
func Inherited() (StepLog, io.Writer) {
	unix.CloseOnExec(stepLogFD)
	unix.CloseOnExec(messagesFD)
	return StepLog{os.NewFile(stepLogFD, "steplog")}, os.NewFile(messagesFD, "messages")
}

// Set records the state of a step.
func (l StepLog) Set(s Step) error {
	slot := 1 + s.Index + int(s.Kind)*MaxGPUs
	value := int64(s.Start)
	if s.Done {
		value = -value
	}
	var word [slotSize]byte
	binary.NativeEndian.PutUint64(word[:], uint64(value))
	if _, err := l.file.WriteAt(word[:], int64(slot)*slotSize); err != nil {
		return fmt.Errorf("recording a step with GPU index %d: %w", s.Index, err)
	}
	return nil
}

// steps returns the latest step of each slot.
func (l StepLog) steps() (steps []Step) {
	var words [slots * slotSize]byte
	n, _ := l.file.ReadAt(words[:], 0) // the file ends after the last slot that was set
	for slot := range n / slotSize {
		value := int64(binary.NativeEndian.Uint64(words[slot*slotSize:]))
		if value == 0 {
			continue
		}
		s := Step{Index: NoGPU, Start: time.Duration(max(value, -value)), Done: value < 0}
		if slot > 0 {
			s.Index, s.Kind = (slot-1)%MaxGPUs, Kind((slot-1)/MaxGPUs)
		}
		steps = append(steps, s)
	}
	return steps
}
