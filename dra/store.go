package dra

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpucdi/gpucdi/internal/host"
)

const (
	recordSuffix = ".json"
	recordMode   = 0o600
	recordsMode  = 0o700
	// recordLimit bounds the size of a record in bytes, and maxRecords their number. A node runs a few hundred pods.
	recordLimit = 1 << 20
	maxRecords  = 4096
	// maxFiles bounds the files that are read. Agents that were killed leave temporary files.
	maxFiles = 2 * maxRecords
)

// errRecord means that the records were not read, or that a record was not written or removed.
var errRecord = errors.New("claim record")

// maxUID bounds the UID of a claim, in bytes, and uidPattern is its format. It becomes a file name.
const maxUID = 128

var uidPattern = regexp.MustCompile(`^[0-9A-Za-z][-0-9A-Za-z_.]*$`)

func isUID(text string) bool { return len(text) <= maxUID && uidPattern.MatchString(text) }

// store has the records, in memory and in one file each, <uid>.json. Calls for the same claim must not overlap.
type store struct {
	dir string // empty keeps records only in memory

	mu      sync.Mutex
	records map[string]storedRecord
	all     atomic.Pointer[[]Record] // sorted by UID
}

// storedRecord is a record with the fields of its file, including fields of other versions of gpucdi.
type storedRecord struct {
	Record
	fields map[string]json.RawMessage
}

// load returns the records in a directory. Files that cannot be read result in damaged records. The error reports that
// the directory cannot be read; the store is then usable, without records.
func load(dir string) (*store, error) {
	s := &store{dir: dir, records: map[string]storedRecord{}}
	defer s.publish()
	if dir == "" {
		return s, nil
	}
	names, err := host.Names(dir, maxFiles)
	if errors.Is(err, fs.ErrNotExist) {
		return s, nil
	}
	if err != nil {
		return s, fmt.Errorf("%w not read: %w", errRecord, err)
	}
	for _, name := range names {
		if strings.HasPrefix(name, ".") && strings.Contains(name, recordSuffix+".") {
			_ = os.Remove(filepath.Join(dir, name)) // a temporary file of a killed agent
		}
		if uid, ok := strings.CutSuffix(name, recordSuffix); ok && isUID(uid) {
			s.records[uid] = s.read(uid)
		}
	}
	return s, nil
}

func (s *store) path(uid string) string { return filepath.Join(s.dir, uid+recordSuffix) }

func (s *store) read(uid string) storedRecord {
	r := storedRecord{Record: Record{UID: uid}}
	data, err := host.ReadFile(s.path(uid), recordLimit)
	if err == nil {
		err = r.decode(data)
	}
	if err != nil {
		return storedRecord{Record: Record{UID: uid, Damaged: host.Printable(err.Error(), maxMessage)}}
	}
	return r
}

// decode reads the content of a file.
func (r *storedRecord) decode(data []byte) error {
	var file recordFile
	if err := errors.Join(json.Unmarshal(data, &r.fields), json.Unmarshal(data, &file)); err != nil {
		return err
	}
	r.Namespace, r.Name, r.Prepared, r.Devices = file.Namespace, file.Name, file.Prepared, file.Devices
	r.Pods = file.Pods
	if r.Namespace == "" || r.Name == "" || len(r.Devices) == 0 {
		return errors.New("no claim name or no devices")
	}
	for _, d := range r.Devices {
		if d.ID == "" || d.Name == "" {
			return errors.New("a device has no ID or no name")
		}
	}
	return nil
}

// recordFile is the content of a file in this version.
type recordFile struct {
	Namespace string    `json:"namespace"`
	Name      string    `json:"name"`
	Devices   []Device  `json:"devices"`
	Pods      []Pod     `json:"pods"`
	Prepared  time.Time `json:"prepared"`
}

// get returns the record of a claim.
func (s *store) get(uid string) (Record, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	r, found := s.records[uid]
	return r.Record, found
}

// snapshot returns all records, sorted by UID.
func (s *store) snapshot() []Record { return *s.all.Load() }

// full reports whether no further claim can be recorded.
func (s *store) full() bool { return len(s.snapshot()) >= maxRecords }

// save writes a record, and returns once it is on disk. It keeps the fields that other versions of gpucdi wrote to an
// earlier record of the claim.
func (s *store) save(r Record) error {
	s.mu.Lock()
	earlier := s.records[r.UID]
	s.mu.Unlock()
	fields, err := earlier.updated(r)
	if err == nil && s.dir != "" {
		err = s.write(r.UID, fields)
	}
	if err != nil {
		return fmt.Errorf("%w not written: %w", errRecord, err)
	}
	s.mu.Lock()
	s.records[r.UID] = storedRecord{r, fields}
	s.mu.Unlock()
	s.publish()
	return nil
}

// updated returns the fields of a file for the record that replaces r. A field that does not change keeps its text,
// which may contain fields of other versions of gpucdi.
func (r storedRecord) updated(next Record) (map[string]json.RawMessage, error) {
	fields := maps.Clone(r.fields)
	if fields == nil {
		fields = map[string]json.RawMessage{}
	}
	var errs []error
	set := func(name string, value any, unchanged bool) {
		if _, found := fields[name]; found && unchanged {
			return
		}
		text, err := json.Marshal(value)
		fields[name] = text
		errs = append(errs, err)
	}
	set("namespace", next.Namespace, false)
	set("name", next.Name, false)
	set("prepared", next.Prepared, false)
	set("devices", next.Devices, slices.Equal(next.Devices, r.Devices))
	set("pods", next.Pods, slices.Equal(next.Pods, r.Pods))
	return fields, errors.Join(errs...)
}

func (s *store) write(uid string, fields map[string]json.RawMessage) error {
	data, err := json.Marshal(fields)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(s.dir, recordsMode); err != nil {
		return err
	}
	return host.WriteFile(s.path(uid), data, recordMode, func(string) error { return nil })
}

// remove removes the record of a claim. If it fails, the record is unchanged.
func (s *store) remove(uid string) error {
	if s.dir != "" {
		// ENOTDIR means that dir is not a directory, so it contains no record.
		if err := os.Remove(s.path(uid)); err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, unix.ENOTDIR) {
			return fmt.Errorf("%w not removed: %w", errRecord, err)
		}
	}
	s.mu.Lock()
	delete(s.records, uid)
	s.mu.Unlock()
	s.publish()
	return nil
}

// publish makes the current records the snapshot.
func (s *store) publish() {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := make([]Record, 0, len(s.records))
	for _, r := range s.records {
		all = append(all, r.Record)
	}
	slices.SortFunc(all, func(a, b Record) int { return cmp.Compare(a.UID, b.UID) })
	s.all.Store(&all)
}
