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
	configName = "config.yaml" // verbatim copy of the last known good config
	stateMode  = 0o600
	dirMode    = 0o755
)

// stateFile stores the state that survives a restart of the agent. The state directory is a tmpfs, because a reboot
// invalidates this state. An agent also starts with a missing or damaged file; see save for failed writes.
type stateFile struct {
	dir     string // empty disables it
	log     *slog.Logger
	fields  map[string]json.RawMessage // including fields of later versions
	written []byte
	config  []byte // last known good config, as saved
	failed  string // the latest error, already logged
}

// Fields of the file in this version.
const (
	faultsField = "faults" // see health.Saved
	ledgerField = "ledger" // see allocator.Saved
)

// load returns the state that an earlier agent saved; nil for a field that is missing or damaged.
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
	if s.fields == nil { // the file contains null
		s.fields = map[string]json.RawMessage{}
	}
	faults, errFaults := field[map[string]health.Saved](s, faultsField)
	ledger, errLedger := field[*allocator.Saved](s, ledgerField)
	if err := errors.Join(err, errFaults, errLedger); err != nil {
		s.log.Warn("saved state damaged, ignoring damaged fields", "path", s.path(), "err", err)
	}
	return faults, ledger
}

// field returns a field of the file; the zero value if it is missing or damaged.
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

// save writes the state if it changed. After a failed write it deletes the file. It returns false if stale state
// remains for the next agent.
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
	_ = os.Remove(s.path()) // stale
	_, missing := os.Lstat(s.path())
	if err.Error() != s.failed {
		s.failed = err.Error()
		s.log.Error("state not saved, an agent restart would lose faults and device holders", "err", err)
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

// saveConfig saves the config in effect as the last known good one.
func (s *stateFile) saveConfig(file *config.File) {
	if s.dir == "" || file.Text() == nil || bytes.Equal(file.Text(), s.config) {
		return
	}
	err := os.MkdirAll(s.dir, dirMode)
	if err == nil {
		err = host.WriteFile(filepath.Join(s.dir, configName), file.Text(), stateMode, func(string) error { return nil })
	}
	if err != nil {
		s.log.Error("last known good config not saved", "err", err)
		return
	}
	s.config = file.Text()
}

// lastGoodConfig returns the last known good config; fs.ErrNotExist if none is saved.
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
