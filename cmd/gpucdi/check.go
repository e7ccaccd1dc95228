package main

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"

	"github.com/aymanbagabas/go-udiff"
)

// check compares a file with what it should hold, and prints how they differ.
func check(stdout io.Writer, path string, want []byte) error {
	have, err := os.ReadFile(path)
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
