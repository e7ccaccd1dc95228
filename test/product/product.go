// Package product builds the binary that ships, for tests that run it.
package product

import (
	"context"
	"fmt"
	"os/exec"
	"path/filepath"

	"github.com/gpucdi/gpucdi/test/node/tools"
)

// Build builds gpucdi and what stands beside it as make build does into dir,
// and returns gpucdi's path.
func Build(ctx context.Context, dir string) (string, error) {
	module, err := tools.ModuleDir(ctx)
	if err != nil {
		return "", err
	}
	cmd := exec.CommandContext(ctx, "make", "--no-print-directory", "build", "BIN="+dir)
	cmd.Dir = filepath.Dir(module)
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("building gpucdi: %w\n%s", err, out)
	}
	return filepath.Join(dir, "gpucdi"), nil
}
