package simdriver

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"os"
)

// The layout of the table of memory limits, which precedes the state in the library file; see src/limits.h.
const (
	limitsSize   = 102 << 10 // of the table
	limitSize    = 408       // of an entry
	cgroupOffset = 64
	inodeOffset  = 384
	hardOffset   = 400
)

// settingsSize is the size in bytes of the settings, which precede the state in the library file: the compute modes
// (see src/nvml/computemode.c) and the memory limits. Programs can change the settings, but not the state.
const settingsSize = 1<<10 + limitsSize

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

// resetSettings removes all memory limits and compute modes, which a driver keeps in its kernel module.
func resetSettings(library string) error {
	if err := writeBeforeEnd(library, make([]byte, settingsSize), slotSize+settingsSize); err != nil {
		return fmt.Errorf("resetting the memory limits and compute modes in %s: %w", library, err)
	}
	return nil
}

// text returns the string in a fixed-size field.
func text(field []byte) string {
	s, _, _ := bytes.Cut(field, []byte{0})
	return string(s)
}
