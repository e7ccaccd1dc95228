package agent

import (
	"encoding/json"
	"errors"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"sync"

	"github.com/gpucdi/gpucdi/gpu"
	"github.com/gpucdi/gpucdi/internal/host"
)

// exclusiveName is the file in the state directory with the exclusiveGPUs.
const exclusiveName = "exclusive-gpus.json"

// exclusiveGPUs are the GPUs whose compute mode was changed for MPS, by UUID, with their mode before. It is saved before
// a mode is changed, so that the mode is reset whatever happens in between. It is safe for concurrent use.
type exclusiveGPUs struct {
	dir string // empty: not saved

	mu    sync.Mutex
	modes map[string]gpu.ComputeMode
}

// newExclusiveGPUs returns the GPUs that were saved in a directory. A damaged file is only logged.
func newExclusiveGPUs(dir string, log *slog.Logger) *exclusiveGPUs {
	e := &exclusiveGPUs{dir: dir}
	if dir != "" {
		data, err := host.NewRoot(dir).ReadFile(exclusiveName)
		if err == nil {
			err = json.Unmarshal(data, &e.modes)
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			log.Warn("saved compute modes damaged", "path", filepath.Join(dir, exclusiveName), "err", err,
				"remedy", "if GPUs are in the compute mode Exclusive_Process, reset it with nvidia-smi --compute-mode")
		}
	}
	if e.modes == nil {
		e.modes = map[string]gpu.ComputeMode{}
	}
	return e
}

// mode returns the mode of a GPU before it was changed, and whether it was.
func (e *exclusiveGPUs) mode(uuid string) (mode gpu.ComputeMode, changed bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	mode, changed = e.modes[uuid]
	return mode, changed
}

// all returns a copy.
func (e *exclusiveGPUs) all() map[string]gpu.ComputeMode {
	e.mu.Lock()
	defer e.mu.Unlock()
	return maps.Clone(e.modes)
}

// add saves the mode that a GPU has before it is changed.
func (e *exclusiveGPUs) add(uuid string, before gpu.ComputeMode) error {
	return e.change(func(modes map[string]gpu.ComputeMode) { modes[uuid] = before })
}

// remove removes a GPU whose mode was reset.
func (e *exclusiveGPUs) remove(uuid string) error {
	return e.change(func(modes map[string]gpu.ComputeMode) { delete(modes, uuid) })
}

func (e *exclusiveGPUs) change(change func(modes map[string]gpu.ComputeMode)) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	modes := maps.Clone(e.modes)
	change(modes)
	if maps.Equal(modes, e.modes) {
		return nil
	}
	if err := e.save(modes); err != nil {
		return err
	}
	e.modes = modes
	return nil
}

func (e *exclusiveGPUs) save(modes map[string]gpu.ComputeMode) error {
	if e.dir == "" {
		return nil
	}
	path := filepath.Join(e.dir, exclusiveName)
	if len(modes) == 0 {
		if err := host.RemoveFile(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		return nil
	}
	data, err := json.Marshal(modes)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(e.dir, dirMode); err != nil {
		return err
	}
	return host.WriteFile(path, data, stateMode, func(string) error { return nil })
}
