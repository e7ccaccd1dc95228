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

// The limits of what is read of other specs. A runtime reads them without any: what is beyond
// the limits may conflict, and is reported as not checked.
const (
	maxForeign      = 512 << 10 // bytes of a spec; a spec of ours is a tenth of that
	maxForeignSpecs = 1 << 14   // names in the directory
)

// foreignSpecs are the specs of others in the directory of a File. A device that two specs of one
// directory define is a conflict: a runtime resolves it from neither. The files belong to
// somebody else, so they stay.
//
// Other software writes a spec for each container, and the directory is checked after each
// change: a file is parsed once for as long as it stays the same.
type foreignSpecs struct {
	kind      string // that the following is about
	files     map[string]foreignSpec
	truncated bool // there are more files
}

// foreignSpec is a file as last seen.
type foreignSpec struct {
	identity fileIdentity
	devices  []string // that it defines of the kind
	err      error    // why it was not checked
}

// refresh checks what has changed beside the spec at own, which is of that kind. Files that
// runtimes pass over, because they cannot be read or are no valid specs, are passed over here:
// one that is gone since it was listed, a dangling link, a directory, a device. A named pipe
// blocks runtimes that read it, and is no conflict either.
func (s *foreignSpecs) refresh(own, kind string) error {
	names, err := host.Names(filepath.Dir(own), maxForeignSpecs+1)
	if err != nil {
		return fmt.Errorf("listing the CDI directory: %w", err)
	}
	known := s.files
	if s.kind != kind {
		known = nil
	}
	*s = foreignSpecs{kind: kind, files: map[string]foreignSpec{}, truncated: len(names) > maxForeignSpecs}
	for _, name := range names {
		path := filepath.Join(filepath.Dir(own), name)
		if !isSpec(path) || path == own {
			continue
		}
		info, err := os.Stat(path)
		if err != nil || !info.Mode().IsRegular() {
			continue
		}
		file := known[path]
		if now := identity(info); file.identity != now {
			file = foreignSpec{identity: now}
			file.devices, file.err = foreignDevices(path, kind)
		}
		s.files[path] = file
	}
	return nil
}

// foreignDevices returns the devices of a kind that the spec at path defines. The error is for a
// file that a runtime may be able to read.
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

// mayDefine returns whether data can be a spec of that kind, without parsing it. Text can only
// stand for other text by escape sequences, as base64 by a tag, or in UTF-16.
func mayDefine(data []byte, kind string) bool {
	return bytes.Contains(data, []byte(kind)) || bytes.ContainsAny(data, "\\!\x00")
}

// conflicts returns an error that names each file that defines one of the devices.
func (s *foreignSpecs) conflicts(devices []string) error {
	var errs []error
	for _, path := range s.notable() {
		for _, name := range s.files[path].devices {
			if slices.Contains(devices, name) {
				errs = append(errs, fmt.Errorf("conflicting CDI spec %s also defines %s=%s, so runtimes resolve it from neither file; remove that file",
					path, s.kind, name))
				break // one device is enough
			}
		}
	}
	return joinFew(errs)
}

// unchecked returns an error that names each file that may conflict.
func (s *foreignSpecs) unchecked() error {
	var errs []error
	for _, path := range s.notable() {
		if err := s.files[path].err; err != nil {
			errs = append(errs, fmt.Errorf("checking CDI spec %s for conflicts: %w", path, err))
		}
	}
	if s.truncated {
		errs = append(errs, fmt.Errorf("checking other CDI specs for conflicts: more than %d files in the CDI directory", maxForeignSpecs))
	}
	return joinFew(errs)
}

// maxReported bounds what an error names: it becomes the reason of a fault, and an Event.
const maxReported = 5

// joinFew joins the first errors, and counts the others.
func joinFew(errs []error) error {
	if more := len(errs) - maxReported; more > 0 {
		errs = append(errs[:maxReported:maxReported], fmt.Errorf("and %d more", more))
	}
	return errors.Join(errs...)
}

// notable returns the files that define devices of the kind or were not checked, which are few, in
// a stable order.
func (s *foreignSpecs) notable() (paths []string) {
	for path, file := range s.files {
		if len(file.devices) > 0 || file.err != nil {
			paths = append(paths, path)
		}
	}
	slices.Sort(paths)
	return paths
}

// isSpec returns whether runtimes read a file of that name.
func isSpec(path string) bool {
	ending := filepath.Ext(path)
	return ending == ".yaml" || ending == ".json"
}
