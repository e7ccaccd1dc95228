package agent

import (
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/gpucdi/gpucdi/allocator"
	"github.com/gpucdi/gpucdi/dra"
	"github.com/gpucdi/gpucdi/internal/host"
)

// A claim is released if two consecutive reads of the kubelet's checkpoint lack it.
func TestStaleClaims(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) {
		t.Helper()
		path := filepath.Join(dir, name)
		err := os.MkdirAll(filepath.Dir(path), 0o700)
		if err == nil {
			err = os.WriteFile(path, []byte(text), 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	write("claims/uid-a.json", `{"namespace":"default","name":"a","devices":[{"request":"gpu","name":"gpu-0","id":"GPU-0"}]}`)
	write("claims/uid-b.json", "damaged")
	log := slog.New(slog.DiscardHandler)
	gate := allocator.NewGate(time.Now)
	c := &claims{node: host.NewRoot("/"), kubeletDir: dir, gate: gate}
	c.driver = dra.New(dra.Config{Driver: "gpu.nvidia.com", Pool: "node", KubeletDir: dir, StateDir: dir, Gate: gate}, log)
	// noList is in an unknown format, which proves nothing.
	gate.Restore(allocator.Claim{UID: "uid-c", Devices: []string{"GPU-1"}}) // has no record
	const none, all, noList = `{"Data":"{\"ClaimInfoStateList\":[]}"}`, `{"Data":"{\"ClaimInfoStateList\":[{\"ClaimUID\":\"uid-a\"},{\"ClaimUID\":\"uid-b\"},{\"ClaimUID\":\"uid-c\"}]}"}`, `{"Data":"{}"}`
	var missing map[string]bool
	for _, step := range []struct {
		checkpoint string
		missing    int // claims that are released if the next read lacks them, too
		records    int // afterwards
	}{
		{"", 0, 2}, {all, 0, 2}, {none, 3, 2}, {all, 0, 2}, {none, 3, 2}, {noList, 0, 2}, {none, 3, 2}, {none, 0, 0},
	} {
		if step.checkpoint != "" { // else there is none yet
			write("dra_manager_state", step.checkpoint)
		}
		missing = c.releaseStale(t.Context(), missing, log)
		if got := len(c.driver.Records()); len(missing) != step.missing || got != step.records {
			t.Errorf("after %s: %d claims missing and %d records, want %d and %d", step.checkpoint, len(missing), got, step.missing, step.records)
		}
	}
	if held := gate.Claims(); len(held) > 0 {
		t.Errorf("the gate has %v", held)
	}
}
