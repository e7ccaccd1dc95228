package simdriver

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"os"
)

// The layout of the table of memory limits, which is before the state in the library file; see src/limits.h.
const (
	limitsSize   = 102 << 10
	limitSize    = 408
	cgroupOffset = 64
	inodeOffset  = 384
	hardOffset   = 400
)

// MemoryLimit is the memory in bytes that the processes of a cgroup and its descendants can allocate on a GPU.
type MemoryLimit struct {
	GPU    string // UUID
	Cgroup string // path below the mount point
	Bytes  uint64
}

// MemoryLimits returns the memory limits that programs have set. Limits of removed cgroups may be missing.
func (d *Driver) MemoryLimits() ([]MemoryLimit, error) {
	data, err := os.ReadFile(d.LibraryPath())
	if err != nil {
		return nil, fmt.Errorf("reading memory limits of the simulated driver: %w", err)
	}
	table := data[len(data)-slotSize-limitsSize : len(data)-slotSize]
	var limits []MemoryLimit
	for ; len(table) > 0; table = table[limitSize:] {
		if gpu := text(table[:cgroupOffset]); gpu != "" {
			limits = append(limits, MemoryLimit{gpu, text(table[cgroupOffset:inodeOffset]), binary.NativeEndian.Uint64(table[hardOffset:])})
		}
	}
	return limits, nil
}

// removeLimits removes all memory limits, which a driver keeps in its kernel module.
func removeLimits(library string) error {
	if err := writeBeforeEnd(library, make([]byte, limitsSize), slotSize+limitsSize); err != nil {
		return fmt.Errorf("removing the memory limits from %s: %w", library, err)
	}
	return nil
}

// text returns the string in a fixed-size field.
func text(field []byte) string {
	s, _, _ := bytes.Cut(field, []byte{0})
	return string(s)
}
