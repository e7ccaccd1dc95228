// Package product builds the binary that ships, for tests that run it.
package product

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/gpucdi/gpucdi/test/node/tools"
)

// Build builds gpucdi and what stands beside it as make build does into dir,
// and returns gpucdi's path. flags are the go command's own, "-race" above all.
func Build(ctx context.Context, dir string, flags ...string) (string, error) {
	module, err := tools.ModuleDir(ctx)
	if err != nil {
		return "", err
	}
	cmd := exec.CommandContext(ctx, "make", "--no-print-directory", "build", "BIN="+dir)
	cmd.Dir = filepath.Dir(module)
	cmd.Env = append(os.Environ(), "GOFLAGS="+strings.Join(append(flags, os.Getenv("GOFLAGS")), " "))
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("building gpucdi: %w\n%s", err, out)
	}
	return filepath.Join(dir, "gpucdi"), nil
}
