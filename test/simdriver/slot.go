package simdriver

import (
	"encoding/binary"
	"fmt"
	"hash/fnv"
	"os"
	"time"
)

const (
	// slotSize is the size of the state at the end of the library file, in bytes.
	slotSize   = 96 << 10
	slotHeader = 32 // bytes before the text
	slotMagic  = "NVSIM/1\x00"
)

// slot encodes text for the end of the library: magic, a unique sequence number,
// checksum, length, text, and zeros. Readers detect a half-written slot by its
// checksum, and retry.
func slot(text string) ([]byte, error) {
	if len(text) >= slotSize-slotHeader {
		return nil, fmt.Errorf("state of %d bytes exceeds %d; use fewer GPUs, links or events", len(text), slotSize-slotHeader)
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

// writeSlot writes a new state into a library in place, because programs that
// have loaded it and containers that mount it share the inode.
func writeSlot(library, text string) error {
	b, err := slot(text)
	if err != nil {
		return err
	}
	if err := writeBeforeEnd(library, b, slotSize); err != nil {
		return fmt.Errorf("writing the state to %s: %w", library, err)
	}
	return nil
}

// writeBeforeEnd overwrites part of a file with data, starting fromEnd bytes before its end.
func writeBeforeEnd(path string, data []byte, fromEnd int64) error {
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return err
	}
	_, err = f.WriteAt(data, st.Size()-fromEnd)
	return err
}
