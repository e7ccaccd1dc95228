package agent

import (
	"encoding/json"
	"errors"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sync"

	"github.com/gpucdi/gpucdi/internal/host"
)

// exclusiveName is the file in the state directory with the exclusiveGPUs.
const exclusiveName = "exclusive-gpus.json"

// exclusiveGPUs are the UUIDs of the GPUs whose compute mode was changed for MPS. A GPU is saved before its mode is
// changed, so that the mode is reset whatever happens in between. It is safe for concurrent use.
type exclusiveGPUs struct {
	dir string // empty: not saved

	mu    sync.Mutex
	uuids []string // sorted; replaced, not changed
}

// newExclusiveGPUs returns the GPUs that were saved in a directory. A damaged file is only logged.
func newExclusiveGPUs(dir string, log *slog.Logger) *exclusiveGPUs {
	e := &exclusiveGPUs{dir: dir}
	if dir == "" {
		return e
	}
	data, err := host.NewRoot(dir).ReadFile(exclusiveName)
	if err == nil {
		err = json.Unmarshal(data, &e.uuids)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		log.Warn("list of GPUs in exclusive compute mode damaged", "path", filepath.Join(dir, exclusiveName), "err", err,
			"remedy", "if GPUs are in the compute mode Exclusive_Process or Prohibited, reset it with nvidia-smi --compute-mode")
	}
	return e
}

func (e *exclusiveGPUs) has(uuid string) bool { return slices.Contains(e.all(), uuid) }

// all returns the UUIDs, sorted. The caller must not change them.
func (e *exclusiveGPUs) all() []string {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.uuids
}

// add saves a GPU whose mode is about to be changed.
func (e *exclusiveGPUs) add(uuid string) error {
	return e.change(func(uuids map[string]bool) { uuids[uuid] = true })
}

// remove removes a GPU whose mode was reset.
func (e *exclusiveGPUs) remove(uuid string) error {
	return e.change(func(uuids map[string]bool) { delete(uuids, uuid) })
}

func (e *exclusiveGPUs) change(change func(uuids map[string]bool)) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	set := map[string]bool{}
	for _, uuid := range e.uuids {
		set[uuid] = true
	}
	change(set)
	uuids := slices.Sorted(maps.Keys(set))
	if slices.Equal(uuids, e.uuids) {
		return nil
	}
	if err := e.save(uuids); err != nil {
		return err
	}
	e.uuids = uuids
	return nil
}

func (e *exclusiveGPUs) save(uuids []string) error {
	if e.dir == "" {
		return nil
	}
	path := filepath.Join(e.dir, exclusiveName)
	if len(uuids) == 0 {
		if err := host.RemoveFile(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		return nil
	}
	data, err := json.Marshal(uuids)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(e.dir, dirMode); err != nil {
		return err
	}
	return host.WriteFile(path, data, stateMode, func(string) error { return nil })
}
