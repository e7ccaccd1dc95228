package driver

import (
	"encoding/binary"
	"fmt"
	"io"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// Marker is memory that the driver worker shares with the agent. The worker marks each step there,
// when it begins and when it is back. The agent reads the marks only when a step may be overdue, and
// when the worker has ended, so a driver that answers costs it nothing.
type Marker struct{ file *os.File }

// The worker's descriptors of the marker, and of the pipe for its messages. Its standard output is
// not the place for them: the driver's library might write there too.
const (
	markerFD   = 3
	messagesFD = 4
)

// Nobody is the index for calls that concern the whole node.
const Nobody = -1

// MaxGPUs is the most GPUs that a node can have: the kernel driver has 256 minor numbers.
const MaxGPUs = 256

// Step is a few calls into the driver in a row. At any time one step about Nobody, one about each
// GPU and one trial of each GPU can be under way.
type Step struct {
	Index int // of the GPU, or Nobody

	// Trial marks a step that checks whether a doubted GPU answers again. Nothing waits for it.
	Trial bool

	// Begin is by Clock. That of a step which waits for events is when they have been waited for.
	Begin time.Duration

	Back bool
}

// Clock returns the time since the node was started, which is the same for all of its processes and
// which nobody can set.
func Clock() time.Duration {
	var now unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_MONOTONIC, &now) // every kernel has it
	return time.Duration(now.Nano())
}

// A marker is an array of slots: for Nobody, for each GPU, and for the trial of each. A slot holds
// the Begin of its latest step, negative when that is back, 0 when there was none.
const (
	slotSize = 8
	slots    = 1 + 2*MaxGPUs
)

func newMarker() (Marker, error) {
	fd, err := unix.MemfdCreate("gpucdi-marker", unix.MFD_CLOEXEC)
	if err != nil {
		return Marker{}, fmt.Errorf("allocating memory to share with the driver worker: %w", err)
	}
	return Marker{os.NewFile(uintptr(fd), "marker")}, nil
}

// Inherited returns what the agent has given to this process, its driver worker: the marker, and
// where Messages go. Programs that the driver's library starts do not inherit them: they may outlive
// the worker.
func Inherited() (Marker, io.Writer) {
	unix.CloseOnExec(markerFD)
	unix.CloseOnExec(messagesFD)
	return Marker{os.NewFile(markerFD, "marker")}, os.NewFile(messagesFD, "messages")
}

// Set marks a step.
func (m Marker) Set(s Step) error {
	slot := 1 + s.Index
	if s.Trial {
		slot += MaxGPUs
	}
	value := int64(s.Begin)
	if s.Back {
		value = -value
	}
	var word [slotSize]byte
	binary.NativeEndian.PutUint64(word[:], uint64(value))
	if _, err := m.file.WriteAt(word[:], int64(slot)*slotSize); err != nil {
		return fmt.Errorf("marking a step about GPU %d: %w", s.Index, err)
	}
	return nil
}

// steps returns the latest step of each slot that had one.
func (m Marker) steps() (steps []Step) {
	var words [slots * slotSize]byte
	n, _ := m.file.ReadAt(words[:], 0) // it ends after the last slot that was ever set
	for slot := range n / slotSize {
		value := int64(binary.NativeEndian.Uint64(words[slot*slotSize:]))
		if value == 0 {
			continue
		}
		s := Step{Index: slot - 1, Begin: time.Duration(max(value, -value)), Back: value < 0}
		if s.Trial = slot > MaxGPUs; s.Trial {
			s.Index -= MaxGPUs
		}
		steps = append(steps, s)
	}
	return steps
}
