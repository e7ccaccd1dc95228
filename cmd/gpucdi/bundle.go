package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/gpucdi/gpucdi/doctor"
)

// writeBundle writes the bundle of a node (see doctor.Bundle) to a file, or to stdout if path is "-". It replaces a file
// only by a complete bundle. If stdout is a terminal, it returns a usage error.
func writeBundle(ctx context.Context, node doctor.Node, stdout io.Writer, path string) error {
	if path == "-" {
		if isTerminal(stdout) {
			return usage(errors.New("writing the bundle: stdout is a terminal; redirect it to a file"))
		}
		return writingBundle(doctor.Bundle(ctx, node, stdout))
	}
	file, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+".*")
	if err != nil {
		return writingBundle(err)
	}
	err = errors.Join(doctor.Bundle(ctx, node, file), file.Close())
	if err == nil {
		err = os.Rename(file.Name(), path)
	}
	if err != nil {
		return writingBundle(errors.Join(err, os.Remove(file.Name())))
	}
	line(stdout, "wrote %s", path)
	return nil
}

func writingBundle(err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("writing the bundle: %w", err)
}
