package main

import (
	"errors"
	"fmt"
	"io"
	"io/fs"

	"github.com/aymanbagabas/go-udiff"

	"github.com/gpucdi/gpucdi/internal/host"
)

// maxChecked bounds a file that is compared, in bytes. Specs have some 60 KiB.
const maxChecked = 4 << 20

// check compares a file with what it should hold, and prints how they differ.
func check(stdout io.Writer, path string, want []byte) error {
	have, err := host.ReadFile(path, maxChecked)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("checking the CDI spec: %w", err)
	}
	difference := udiff.Unified(path, path+" as it should be", string(have), string(want))
	if difference == "" {
		return nil
	}
	if _, err := io.WriteString(stdout, difference); err != nil {
		return err
	}
	return fmt.Errorf("%s is stale: write it anew with --output %s and the same flags", path, path)
}
