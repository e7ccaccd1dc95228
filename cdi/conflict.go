package cdi

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"github.com/gpucdi/gpucdi/internal/host"
)

// Limits for reading foreign specs. Runtimes have none, so specs beyond the limits may conflict, and are reported as
// unchecked.
const (
	maxForeign      = 512 << 10 // bytes of a spec; the agent's own has a tenth of that
	maxForeignSpecs = 1 << 14   // files in the directory
)

// foreignSpecs are the specs of other tools in the directory of a File. Two specs in one directory that define the same
// device conflict: runtimes resolve it from neither. Foreign specs are never modified.
//
// The directory is checked after each change, and some tools write a spec for each container. Files are therefore
// parsed again only when they change.
type foreignSpecs struct {
	kind      string // of the devices in files
	files     map[string]foreignSpec
	truncated bool // the directory has more files than maxForeignSpecs
}

// foreignSpec is the state of a file when it was last read.
type foreignSpec struct {
	identity fileIdentity
	devices  []string // of foreignSpecs.kind
	err      error    // reason why it was not checked
}

// refresh reads the foreign specs in the directory of the spec at own, and records their devices of kind. It skips the
// files that runtimes skip because they are unreadable or invalid: removed files, dangling symlinks, directories,
// sockets. It also skips named pipes and device nodes, which can block runtimes, but define no devices; and agentFiles,
// if own is one of them.
func (s *foreignSpecs) refresh(own, kind string) error {
	names, err := host.Names(filepath.Dir(own), maxForeignSpecs+1)
	if err != nil {
		return fmt.Errorf("listing the CDI directory: %w", err)
	}
	previous := s.files
	if s.kind != kind {
		previous = nil
	}
	*s = foreignSpecs{kind: kind, files: map[string]foreignSpec{}, truncated: len(names) > maxForeignSpecs}
	for _, name := range names {
		path := filepath.Join(filepath.Dir(own), name)
		if !isSpec(path) || path == own || agentFiles[name] && agentFiles[filepath.Base(own)] {
			continue
		}
		info, err := os.Stat(path)
		if err != nil || !info.Mode().IsRegular() {
			continue
		}
		file := previous[path]
		if current := identity(info); file.identity != current {
			file = foreignSpec{identity: current}
			file.devices, file.err = foreignDevices(path, kind)
		}
		s.files[path] = file
	}
	return nil
}

// foreignDevices returns the devices of a kind that the spec at path defines. It returns an error only for files that
// runtimes may be able to read.
func foreignDevices(path, kind string) ([]string, error) {
	data, err := host.ReadFile(path, maxForeign)
	if errors.As(err, new(*host.TooLargeError)) || errors.Is(err, fs.ErrPermission) {
		return nil, err
	}
	if err != nil || !mayDefine(data, kind) {
		return nil, nil
	}
	spec, err := parseForeign(path, data)
	if errors.Is(err, errTooManyKeys) {
		return nil, err
	}
	if err != nil || spec.Kind != kind {
		return nil, nil
	}
	return deviceNames(spec.Spec), nil
}

// mayDefine reports whether data can be a spec of that kind, without parsing it. Only escape sequences, tags such as
// !!binary, and UTF-16 can encode the kind in other bytes.
func mayDefine(data []byte, kind string) bool {
	return bytes.Contains(data, []byte(kind)) || bytes.ContainsAny(data, "\\!\x00")
}

// conflicts returns an error for each foreign spec that defines one of the devices.
func (s *foreignSpecs) conflicts(devices []string) error {
	var errs []error
	for _, path := range s.relevant() {
		for _, name := range s.files[path].devices {
			if slices.Contains(devices, name) {
				errs = append(errs, fmt.Errorf("conflicting CDI spec %s also defines %s=%s, so runtimes resolve it from neither file; remove that file",
					path, s.kind, name))
				break // one error for each file
			}
		}
	}
	return joinFirst(errs)
}

// unchecked returns an error for each foreign spec that was not checked and may conflict.
func (s *foreignSpecs) unchecked() error {
	var errs []error
	for _, path := range s.relevant() {
		if err := s.files[path].err; err != nil {
			errs = append(errs, fmt.Errorf("checking CDI spec %s for conflicts: %w", path, err))
		}
	}
	if s.truncated {
		errs = append(errs, fmt.Errorf("checking other CDI specs for conflicts: more than %d files in the CDI directory; remove unused files", maxForeignSpecs))
	}
	return joinFirst(errs)
}

// maxReported limits the joined errors, which become the message of faults and Events.
const maxReported = 5

// joinFirst joins the first errors and the number of the others.
func joinFirst(errs []error) error {
	if more := len(errs) - maxReported; more > 0 {
		errs = append(errs[:maxReported:maxReported], fmt.Errorf("and %d more", more))
	}
	return errors.Join(errs...)
}

// relevant returns the paths of the files that define devices of the kind or were not checked, sorted.
func (s *foreignSpecs) relevant() (paths []string) {
	for path, file := range s.files {
		if len(file.devices) > 0 || file.err != nil {
			paths = append(paths, path)
		}
	}
	slices.Sort(paths)
	return paths
}

// isSpec reports whether runtimes read files with that extension.
func isSpec(path string) bool {
	ext := filepath.Ext(path)
	return ext == ".yaml" || ext == ".json"
}
