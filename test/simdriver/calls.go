package simdriver

import (
	"bytes"
	"encoding/binary"
	"errors"
	"os"
)

// counterSize is that of struct counter in src/nvml/counter.c: a 4-byte owner,
// a name of 52 bytes, and a count.
const counterSize = 64

// Calls reads how often each NVML function was called by the processes that
// were given that file in NVSIM_CALLS, by the newest name of the function.
// It is empty before the first call.
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
