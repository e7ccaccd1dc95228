package agent

import (
	"log/slog"
	"os"
	"path/filepath"
	"reflect"
	"testing"
	"time"

	"github.com/gpucdi/gpucdi/gpu/health"
)

// Whatever the state file contains, faults are saved in it again, and fields of a later version
// are kept.
func TestSavedStateIsWrittenAgain(t *testing.T) {
	want := map[string]health.Saved{"GPU-a": {Since: time.Unix(1e9, 0).UTC(), Reset: &health.Fault{Category: "xid_48"}}}
	for name, text := range map[string]string{
		"missing": "", "null": "null", "no faults": `{"faults": null}`, "cut off": `{"faults": {`,
		"another type": `[]`, "a later version": `{"later": 1}`,
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
			if got := s.load(); len(got) != 0 {
				t.Fatalf("%v is loaded", got)
			}
			s.save(want)
			later := stateFile{dir: dir, log: slog.New(slog.DiscardHandler)}
			if got := later.load(); !reflect.DeepEqual(got, want) {
				t.Errorf("%v is loaded then, want %v", got, want)
			}
			if _, kept := later.fields["later"]; kept != (name == "a later version") {
				t.Errorf("the fields are %v", later.fields)
			}
		})
	}
}
