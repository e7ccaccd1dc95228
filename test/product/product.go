// Package product builds the programs that ship, for tests that run them.
package product

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"

	"github.com/gpucdi/gpucdi/test/node/tools"
	"github.com/gpucdi/gpucdi/test/programs"
)

// shipped are the programs that ship.
var shipped = programs.New(build, "gpucdi", "gpucdi-nvml", "gpucdi-hook")

// Build puts gpucdi, gpucdi-nvml and gpucdi-hook into dir, as make build does, and returns the path of gpucdi.
func Build(ctx context.Context, dir string) (string, error) {
	if err := shipped.Put(ctx, dir); err != nil {
		return "", err
	}
	return filepath.Join(dir, "gpucdi"), nil
}

func build(ctx context.Context, dir string) error {
	module, err := tools.ModuleDir(ctx)
	if err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, "make", "--no-print-directory", "build", "BIN="+dir)
	cmd.Dir = filepath.Dir(module)
	cmd.Env = append(os.Environ(), GoFlags())
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("building gpucdi: %w\n%s", err, out)
	}
	return nil
}
