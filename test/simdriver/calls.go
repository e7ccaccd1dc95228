package simdriver

import (
	"bytes"
	"encoding/binary"
	"errors"
	"os"
)

// counterSize is the size of struct counter in src/nvml/counter.c: 4 bytes
// state, 52 bytes name, 8 bytes count.
const counterSize = 64

// Calls returns the number of calls of each NVML function by the processes whose
// NVSIM_CALLS is this file. Calls by an alias, such as nvmlInit, count for the
// function that it names, nvmlInit_v2. The result is empty before the first call.
func Calls(file string) (map[string]uint64, error) {
	calls := map[string]uint64{}
	b, err := os.ReadFile(file)
	if errors.Is(err, os.ErrNotExist) {
		return calls, nil
	}
	if err != nil {
		return nil, err
	}
	for ; len(b) >= counterSize; b = b[counterSize:] {
		name, _, _ := bytes.Cut(b[4:56], []byte{0})
		if len(name) > 0 {
			calls[string(name)] = binary.NativeEndian.Uint64(b[56:])
		}
	}
	return calls, nil
}
