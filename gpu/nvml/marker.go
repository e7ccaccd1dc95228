package nvml

import (
	"encoding/binary"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// marker is a few bytes of memory that the worker and the agent share. Ahead
// of each call into the driver the worker leaves word there whom it is about,
// which costs the agent nothing; the agent looks when no more is heard.
type marker struct{ file *os.File }

// markerFD is the marker's descriptor in the worker.
const markerFD = 3

// nobody is the index for calls that concern the whole node.
const nobody = -1

func newMarker() (marker, error) {
	fd, err := unix.MemfdCreate("gpucdi-marker", unix.MFD_CLOEXEC)
	if err != nil {
		return marker{}, fmt.Errorf("making memory to share with the process that holds the driver: %w", err)
	}
	m := marker{os.NewFile(uintptr(fd), "marker")}
	return m, m.set(mark{index: nobody})
}

// inheritedMarker is the marker that the agent has given to this process.
func inheritedMarker() marker { return marker{os.NewFile(markerFD, "marker")} }

// mark is what a marker holds. calls tells a call that is still the same from
// the next one.
type mark struct {
	calls uint32
	index int
}

func (m marker) set(now mark) error {
	var word [8]byte
	binary.NativeEndian.PutUint32(word[:4], now.calls)
	binary.NativeEndian.PutUint32(word[4:], uint32(int32(now.index)))
	if _, err := m.file.WriteAt(word[:], 0); err != nil {
		return fmt.Errorf("marking whom the next call is about: %w", err)
	}
	return nil
}

func (m marker) get() mark {
	var word [8]byte
	if _, err := m.file.ReadAt(word[:], 0); err != nil {
		return mark{index: nobody}
	}
	return mark{
		calls: binary.NativeEndian.Uint32(word[:4]),
		index: int(int32(binary.NativeEndian.Uint32(word[4:]))),
	}
}
