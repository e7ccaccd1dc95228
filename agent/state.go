package agent

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/gpucdi/gpucdi/allocator"
	"github.com/gpucdi/gpucdi/config"
	"github.com/gpucdi/gpucdi/gpu/health"
	"github.com/gpucdi/gpucdi/internal/host"
)

const (
	stateName  = "state.json"
	configName = "config.yaml" // the last known good config, as it was written
	stateMode  = 0o600
	dirMode    = 0o755
)

// stateFile is what has to outlive the agent, in the state directory. That is a tmpfs: its
// content is worth one boot, and a reboot clears what it holds. A file that is missing,
// damaged or cannot be written costs the next agent only what it would have contained.
type stateFile struct {
	dir     string // empty: nothing is kept
	log     *slog.Logger
	fields  map[string]json.RawMessage // those of later versions included
	written []byte
	config  []byte // the last known good one, as saved
	failed  string // the latest error, which is logged once
}

// The fields of the file that this version knows.
const (
	faultsField = "faults" // that only a reset or the GPU's return clears
	ledgerField = "ledger" // what may be held
)

// load returns what an earlier agent saved; nil for what is missing or damaged.
func (s *stateFile) load() (map[string]health.Saved, *allocator.Saved) {
	s.fields = map[string]json.RawMessage{}
	if s.dir == "" {
		return nil, nil
	}
	data, err := host.NewRoot(s.dir).ReadFile(stateName)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err == nil {
		err = json.Unmarshal(data, &s.fields)
	}
	if s.fields == nil { // the file has null
		s.fields = map[string]json.RawMessage{}
	}
	faults, errFaults := field[map[string]health.Saved](s, faultsField)
	ledger, errLedger := field[*allocator.Saved](s, ledgerField)
	if err := errors.Join(err, errFaults, errLedger); err != nil {
		s.log.Warn("saved state not read whole, continuing without what is damaged", "path", s.path(), "err", err)
	}
	return faults, ledger
}

// field returns a field of the file; the zero value for one that is missing or damaged.
func field[T any](s *stateFile, name string) (value T, err error) {
	text, saved := s.fields[name]
	if !saved {
		return value, nil
	}
	if err := json.Unmarshal(text, &value); err != nil {
		var none T
		return none, fmt.Errorf("reading %s: %w", name, err)
	}
	return value, nil
}

// save writes the state for the next agent, if it is not what the file has already, and reports whether
// the next agent will not be misled: it finds this state or, where that cannot be written, none.
func (s *stateFile) save(faults map[string]health.Saved, ledger allocator.Saved) bool {
	if s.dir == "" {
		return true
	}
	err := s.write(faults, ledger)
	if err == nil {
		s.failed = ""
		return true
	}
	s.written = nil
	_ = os.Remove(s.path()) // what it says is not so any more
	_, missing := os.Lstat(s.path())
	if err.Error() != s.failed {
		s.failed = err.Error()
		s.log.Error("state not saved, an agent restart forgets faults and what may be held", "err", err)
	}
	return errors.Is(missing, fs.ErrNotExist) || errors.Is(missing, unix.ENOTDIR)
}

func (s *stateFile) path() string { return filepath.Join(s.dir, stateName) }

func (s *stateFile) write(faults map[string]health.Saved, ledger allocator.Saved) error {
	for name, value := range map[string]any{faultsField: faults, ledgerField: ledger} {
		text, err := json.Marshal(value)
		if err != nil {
			return fmt.Errorf("encoding %s: %w", name, err)
		}
		s.fields[name] = text
	}
	data, err := json.Marshal(s.fields)
	if err != nil {
		return fmt.Errorf("encoding the state: %w", err)
	}
	if bytes.Equal(data, s.written) {
		return nil
	}
	if err := os.MkdirAll(s.dir, dirMode); err != nil {
		return fmt.Errorf("creating the state directory: %w", err)
	}
	if err := host.WriteFile(s.path(), data, stateMode, func(string) error { return nil }); err != nil {
		return err
	}
	s.written = data
	return nil
}

// saveConfig keeps a config that is in effect as the last known good one.
func (s *stateFile) saveConfig(file *config.File) {
	if s.dir == "" || file.Text() == nil || bytes.Equal(file.Text(), s.config) {
		return
	}
	err := os.MkdirAll(s.dir, dirMode)
	if err == nil {
		err = host.WriteFile(filepath.Join(s.dir, configName), file.Text(), stateMode, func(string) error { return nil })
	}
	if err != nil {
		s.log.Error("config not saved, an agent restart with an invalid one has none to fall back to", "err", err)
		return
	}
	s.config = file.Text()
}

// lastGoodConfig returns the config that was last in effect.
func (s *stateFile) lastGoodConfig() (*config.File, error) {
	if s.dir == "" {
		return nil, fs.ErrNotExist
	}
	text, err := host.NewRoot(s.dir).ReadFile(configName)
	if err != nil {
		return nil, err
	}
	return config.Parse(text)
}
