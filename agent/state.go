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

	"github.com/gpucdi/gpucdi/gpu/health"
	"github.com/gpucdi/gpucdi/internal/config"
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

// faultsField is the field of the faults that only a reset or the GPU's return clears.
const faultsField = "faults"

// load returns the faults that an earlier agent saved.
func (s *stateFile) load() map[string]health.Saved {
	s.fields = map[string]json.RawMessage{}
	if s.dir == "" {
		return nil
	}
	data, err := host.NewRoot(s.dir).ReadFile(stateName)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	var faults map[string]health.Saved
	if err == nil {
		err = json.Unmarshal(data, &s.fields)
	}
	if text, saved := s.fields[faultsField]; err == nil && saved {
		err = json.Unmarshal(text, &faults)
	}
	if err != nil {
		s.log.Warn("saved state not read, continuing without it", "path", filepath.Join(s.dir, stateName), "err", err)
		faults = nil
	}
	if err != nil || s.fields == nil { // nil: the file has null
		s.fields = map[string]json.RawMessage{}
	}
	return faults
}

// save writes the faults for the next agent, if they are not what the file has already.
func (s *stateFile) save(faults map[string]health.Saved) {
	if _, saved := s.fields[faultsField]; s.dir == "" || !saved && len(faults) == 0 {
		return
	}
	err := s.write(faults)
	switch {
	case err == nil:
		s.failed = ""
	case err.Error() != s.failed:
		s.failed = err.Error()
		s.log.Error("state not saved, an agent restart forgets faults", "err", err)
	}
}

func (s *stateFile) write(faults map[string]health.Saved) error {
	text, err := json.Marshal(faults)
	if err != nil {
		return fmt.Errorf("encoding the state: %w", err)
	}
	s.fields[faultsField] = text
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
	if err := host.WriteFile(filepath.Join(s.dir, stateName), data, stateMode, func(string) error { return nil }); err != nil {
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
