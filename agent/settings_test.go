package agent

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gpucdi/gpucdi/config"
)

// A config that requires DRA is refused while DRA is disabled, with the remedy for the cause.
func TestConfigRequiresDRA(t *testing.T) {
	path := filepath.Join(t.TempDir(), "config.yaml")
	if err := os.WriteFile(path, []byte("apiVersion: gpucdi.dev/v1\nkind: NodeConfig\nallocation: {mode: dra}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	file, err := config.Load(path)
	if err != nil {
		t.Fatal(err)
	}
	for driver, want := range map[string]string{"": "--dra-driver-name", "gpu.nvidia.com": "API server access"} {
		l := &loop{collaborators: collaborators{cfg: Config{DRADriver: driver}}, snapshot: *newSnapshot()}
		if err := l.adopt(file); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("with the DRA driver %q: error %v, want one with %q", driver, err, want)
		}
	}
}
