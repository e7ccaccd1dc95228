package agent

import (
	"log/slog"
	"os"
	"path/filepath"
	"reflect"
	"testing"
	"time"

	"github.com/gpucdi/gpucdi/allocator"
	"github.com/gpucdi/gpucdi/gpu"
	"github.com/gpucdi/gpucdi/gpu/health"
)

// A missing or damaged state file is replaced by the next save, and fields of later versions are kept.
func TestDamagedStateIsReplaced(t *testing.T) {
	want := map[string]health.Saved{"GPU-a": {Since: time.Unix(1e9, 0).UTC(), Reset: gpu.Fault{Code: "xid_48", Message: "XID 48"}}}
	for name, text := range map[string]string{
		"missing": "", "null": "null", "no faults": `{"faults": null}`, "truncated": `{"faults": {`,
		"another type": `[]`, "another type of the ledger": `{"ledger": [1]}`, "a later version": `{"later": 1}`,
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			path := filepath.Join(dir, stateName)
			if text != "" {
				if err := os.WriteFile(path, []byte(text), stateMode); err != nil {
					t.Fatal(err)
				}
			}
			s := stateFile{dir: dir, log: slog.New(slog.DiscardHandler)}
			if faults, ledger := s.load(); len(faults) != 0 || ledger != nil {
				t.Fatalf("loaded %v and %v, want nothing", faults, ledger)
			}
			held := allocator.Saved{Complete: true, Entries: []allocator.SavedEntry{{Key: allocator.Key{Outlet: "nvidia.com/gpu", ID: "GPU-a"}, State: allocator.StateDraining}}}
			if !s.save(want, held) {
				t.Fatal("not saved")
			}
			later := stateFile{dir: dir, log: slog.New(slog.DiscardHandler)}
			if faults, ledger := later.load(); !reflect.DeepEqual(faults, want) || !reflect.DeepEqual(ledger, &held) {
				t.Errorf("loaded %v and %v after save, want %v and %v", faults, ledger, want, held)
			}
			if _, kept := later.fields["later"]; kept != (name == "a later version") {
				t.Errorf("fields %v", later.fields)
			}
		})
	}
}
