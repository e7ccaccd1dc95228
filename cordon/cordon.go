package cordon

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
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/gpucdi/gpucdi/gpu"
	"github.com/gpucdi/gpucdi/internal/host"
)

const (
	// dirName is the directory of the files, below the state directory.
	dirName = "cordons"
	suffix  = ".json"
	dirMode = 0o755 // like the state directory

	// MaxReason bounds a reason, in bytes.
	MaxReason = 200
	// sizeLimit bounds the size of a file, in bytes, and maxFiles the number of files. A node has at most a few hundred
	// devices.
	sizeLimit = 16 << 10
	maxFiles  = 4096
)

// maxUUID bounds a UUID, in bytes.
const maxUUID = 104

var uuidPattern = regexp.MustCompile(`^(GPU|MIG)-[A-Za-z0-9-]+$`)

// IsUUID reports whether text has the format of the UUID of a GPU or MIG device.
func IsUUID(text string) bool { return len(text) <= maxUUID && uuidPattern.MatchString(text) }

// Cordon is the record of a cordoned device.
type Cordon struct {
	Reason string    `json:"reason,omitempty"` // one line; may be empty
	Since  time.Time `json:"since,omitzero"`   // zero if unknown
}

// Fault returns the fault of a cordoned device.
func (c Cordon) Fault() gpu.Fault {
	return gpu.Fault{
		Code:    gpu.FaultCordoned,
		Message: strings.TrimSuffix("cordoned: "+c.Reason, ": "),
		Remedy:  "to allocate it again, run gpucdi uncordon",
		Since:   c.Since,
	}
}

// CheckReason returns an error if a reason is too long, or is not a single line of graphic characters.
func CheckReason(reason string) error {
	switch {
	case len(reason) > MaxReason:
		return fmt.Errorf("want a reason of at most %d bytes, got %d", MaxReason, len(reason))
	case !utf8.ValidString(reason) || strings.ContainsFunc(reason, func(r rune) bool { return !unicode.IsGraphic(r) }):
		return fmt.Errorf("want a reason on one line without control characters, got %q", reason)
	}
	return nil
}

// Store accesses the files of cordons below a state directory. Its methods are safe for concurrent use, also by several
// processes.
type Store struct{ dir string }

// Open returns the store below a state directory, as seen by this process. The state directory need not exist.
func Open(stateDir string) Store { return Store{filepath.Join(stateDir, dirName)} }

// Set cordons a device durably, or changes the reason of a cordon. It keeps fields that later versions have added.
func (s Store) Set(uuid, reason string, now time.Time) error {
	if !IsUUID(uuid) {
		return fmt.Errorf("cordoning %q: not a UUID of a GPU or MIG device", uuid)
	}
	if err := CheckReason(reason); err != nil {
		return fmt.Errorf("cordoning %s: %w", uuid, err)
	}
	c, fields, err := s.read(uuid)
	if err != nil { // missing or damaged
		c, fields = Cordon{}, map[string]json.RawMessage{}
	}
	text, err := encode(fields, Cordon{Reason: reason, Since: cmp.Or(c.Since, now.UTC().Truncate(time.Second))})
	if err != nil {
		return fmt.Errorf("cordoning %s: %w", uuid, err)
	}
	if err := os.MkdirAll(s.dir, dirMode); err != nil {
		return fmt.Errorf("cordoning %s: %w; check --state-dir", uuid, err)
	}
	if err := host.WriteFile(s.path(uuid), text, 0o600, func(string) error { return nil }); err != nil {
		return fmt.Errorf("cordoning %s: %w", uuid, err)
	}
	return nil
}

// encode returns a JSON object with the fields of a cordon and the unknown fields of its file.
func encode(fields map[string]json.RawMessage, c Cordon) ([]byte, error) {
	text, err := json.Marshal(c)
	if err != nil {
		return nil, err
	}
	known := map[string]json.RawMessage{}
	if err := json.Unmarshal(text, &known); err != nil {
		return nil, err
	}
	merged := maps.Clone(fields)
	delete(merged, "reason") // omitted from known if it is empty
	maps.Copy(merged, known)
	return json.Marshal(merged)
}

// Remove ends the cordon of a device durably. It returns false if the device is not cordoned.
func (s Store) Remove(uuid string) (bool, error) {
	if !IsUUID(uuid) {
		return false, nil
	}
	switch err := host.RemoveFile(s.path(uuid)); {
	case errors.Is(err, fs.ErrNotExist):
		return false, nil
	case err != nil:
		return false, fmt.Errorf("uncordoning %s: %w", uuid, err)
	}
	return true, nil
}

// path returns the path of the file of a device.
func (s Store) path(uuid string) string { return filepath.Join(s.dir, uuid+suffix) }

// uuidOf returns the UUID of the device to which a file belongs; false if it is not the file of a cordon.
func uuidOf(name string) (uuid string, ok bool) {
	uuid, ok = strings.CutSuffix(name, suffix)
	return uuid, ok && IsUUID(uuid)
}

// List returns the cordons by UUID. A damaged file cordons its device without a reason. The error joins all
// problems. The cordons are valid even with an error, except that the map is nil if the directory cannot be listed or
// has too many files.
func (s Store) List() (map[string]Cordon, error) {
	all := map[string]Cordon{}
	names, err := host.Names(s.dir, maxFiles+1)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return all, nil
	case err != nil:
		return nil, fmt.Errorf("listing cordons: %w", err)
	}
	if len(names) > maxFiles { // names may lack cordons
		return nil, fmt.Errorf("listing cordons: %s has more than %d files; remove those that are not cordons", s.dir, maxFiles)
	}
	var errs []error
	for _, name := range names {
		uuid, ok := uuidOf(name)
		if !ok {
			continue // such as a temporary file of a writer that was killed
		}
		c, _, err := s.read(uuid)
		if errors.Is(err, fs.ErrNotExist) {
			continue // removed meanwhile
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("reading a cordon, keeping the device cordoned: %w; run gpucdi cordon or uncordon for it", err))
		}
		all[uuid] = c
	}
	return all, errors.Join(errs...)
}

// read returns the cordon of a device, and all fields of its file.
func (s Store) read(uuid string) (c Cordon, fields map[string]json.RawMessage, err error) {
	text, err := host.ReadFile(s.path(uuid), sizeLimit)
	if err != nil {
		return Cordon{}, nil, err
	}
	if err = json.Unmarshal(text, &fields); err == nil {
		err = json.Unmarshal(text, &c)
	}
	if err == nil && fields == nil {
		err = errors.New("want an object, got null")
	}
	if err == nil {
		err = CheckReason(c.Reason)
	}
	if err != nil {
		return Cordon{}, nil, fmt.Errorf("%s: %w", s.path(uuid), err)
	}
	return c, fields, nil
}
