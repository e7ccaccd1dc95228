package driver

import (
	"encoding/binary"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// Marker is a few bytes of memory that the process at the driver and the agent
// share. Ahead of each call into the driver that process leaves word there whom
// it is about, which costs the agent nothing; the agent looks when no more is
// heard.
type Marker struct{ file *os.File }

// markerFD is the marker's descriptor in the process at the driver.
const markerFD = 3

// Nobody is the index for calls that concern the whole node.
const Nobody = -1

func newMarker() (Marker, error) {
	fd, err := unix.MemfdCreate("gpucdi-marker", unix.MFD_CLOEXEC)
	if err != nil {
		return Marker{}, fmt.Errorf("making memory to share with the process that holds the driver: %w", err)
	}
	m := Marker{os.NewFile(uintptr(fd), "marker")}
	return m, m.Set(Mark{Index: Nobody})
}

// InheritedMarker is the marker that the agent has given to this process.
func InheritedMarker() Marker { return Marker{os.NewFile(markerFD, "marker")} }

// Mark is what a marker holds: the index of a GPU, or Nobody. Calls tells a call
// that is still the same from the next one.
type Mark struct {
	Calls uint32
	Index int
}

// Set leaves word of the next call.
func (m Marker) Set(now Mark) error {
	var word [8]byte
	binary.NativeEndian.PutUint32(word[:4], now.Calls)
	binary.NativeEndian.PutUint32(word[4:], uint32(int32(now.Index)))
	if _, err := m.file.WriteAt(word[:], 0); err != nil {
		return fmt.Errorf("marking whom the next call is about: %w", err)
	}
	return nil
}

func (m Marker) get() Mark {
	var word [8]byte
	if _, err := m.file.ReadAt(word[:], 0); err != nil {
		return Mark{Index: Nobody}
	}
	return Mark{
		Calls: binary.NativeEndian.Uint32(word[:4]),
		Index: int(int32(binary.NativeEndian.Uint32(word[4:]))),
	}
}
