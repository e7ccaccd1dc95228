package main

import (
	"errors"
	"fmt"
	"io"
	"io/fs"

	"github.com/aymanbagabas/go-udiff"

	"github.com/gpucdi/gpucdi/internal/host"
)

// checkLimit bounds the size of a compared file, in bytes. Specs are about 60 KiB.
const checkLimit = 4 << 20

// check compares the CDI spec at path with the expected one. It prints a diff and returns an error if they differ. A
// missing file counts as empty.
func check(stdout io.Writer, path string, want []byte) error {
	have, err := host.ReadFile(path, checkLimit)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("checking the CDI spec: %w", err)
	}
	diff := udiff.Unified(path, path+" (expected)", string(have), string(want))
	if diff == "" {
		return nil
	}
	if _, err := io.WriteString(stdout, indented(diff, 0)); err != nil {
		return err
	}
	return fmt.Errorf("%s is stale; regenerate it with --output %s and the same flags", path, path)
}
