package simdriver

import (
	"encoding/binary"
	"fmt"
	"hash/fnv"
	"os"
	"time"
)

const (
	// slotSize is what the state takes at the end of the library file.
	slotSize   = 64 << 10
	slotHeader = 32
	slotMagic  = "NVSIM/1\x00"
)

// slot lays text out for the end of the library: magic, a sequence number that
// differs from every earlier one, checksum, length, text, and zeros. Readers
// that meet a half-written slot see it in the checksum, and look again.
func slot(text string) ([]byte, error) {
	if len(text) >= slotSize-slotHeader {
		return nil, fmt.Errorf("a state of %d bytes does not fit its %d: fewer GPUs, links or events", len(text), slotSize-slotHeader)
	}
	sum := fnv.New64a()
	sum.Write([]byte(text))
	b := make([]byte, 0, slotSize)
	b = append(b, slotMagic...)
	b = binary.NativeEndian.AppendUint64(b, uint64(time.Now().UnixNano()))
	b = binary.NativeEndian.AppendUint64(b, sum.Sum64())
	b = binary.NativeEndian.AppendUint64(b, uint64(len(text)))
	b = append(b, text...)
	return b[:slotSize], nil
}

// writeSlot puts a new state into a library in place: programs that have it
// mapped, and containers that have it mounted, see the same inode.
func writeSlot(library, text string) error {
	b, err := slot(text)
	if err != nil {
		return err
	}
	f, err := os.OpenFile(library, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return err
	}
	if _, err := f.WriteAt(b, st.Size()-slotSize); err != nil {
		return fmt.Errorf("writing the state into %s: %w", library, err)
	}
	return nil
}
