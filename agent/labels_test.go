package agent

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Without a directory for Node Feature Discovery, a file named gpucdi in the working directory stays: it may be the
// program.
func TestLabelsWithoutDirectory(t *testing.T) {
	t.Chdir(t.TempDir())
	if err := os.WriteFile("gpucdi", nil, 0o600); err != nil {
		t.Fatal(err)
	}
	var a Agent
	if err := a.writeLabels(nil); err != nil {
		t.Error(err)
	}
	if err := a.writeLabels(map[string]string{"a": "b"}); err == nil || !strings.Contains(err.Error(), "set --nfd-dir") {
		t.Errorf("labels written: %v", err)
	}
	if text, err := os.ReadFile("gpucdi"); err != nil || len(text) > 0 {
		t.Errorf("file in the working directory: %q, %v", text, err)
	}
}

// The feature file is removed once there are no labels.
func TestLabelFile(t *testing.T) {
	a := Agent{cfg: Config{NFDDir: t.TempDir()}}
	path := filepath.Join(a.cfg.NFDDir, "gpucdi")
	if err := a.writeLabels(map[string]string{"a": "b"}); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(path); err != nil {
		t.Error(err)
	}
	for range 2 {
		if err := a.writeLabels(nil); err != nil {
			t.Error(err)
		}
	}
	if _, err := os.Stat(path); !os.IsNotExist(err) {
		t.Errorf("without labels: %v", err)
	}
}
