package cdi

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	oci "github.com/opencontainers/runtime-spec/specs-go"
	"tags.cncf.io/container-device-interface/pkg/cdi"
	"tags.cncf.io/container-device-interface/pkg/parser"
	"tags.cncf.io/container-device-interface/specs-go"

	"github.com/gpucdi/gpucdi/internal/config"
	"github.com/gpucdi/gpucdi/internal/host"
)

// Runtimes and unprivileged tools read specs.
const (
	specMode = 0o644
	dirMode  = 0o755
)

// File is a spec in a directory that a container runtime reads. It is never
// removed: the kubelet asks for the same device names again when a container
// restarts, whether the agent runs or not. Not for concurrent use.
type File struct {
	Path   string
	format Format
	node   host.Root

	// Of the latest good Put: what was looked at, and how it was left.
	needed []string
	put    string
}

// NewFile returns the spec file at path. node is where the spec's sources are
// looked for.
func NewFile(path string, format Format, node host.Root) *File {
	return &File{Path: path, format: format, node: node}
}

// AgentFile returns the file of the agent's own spec in dir. It is JSON, which
// is rendered in a sixth of the time that YAML takes: the offer waits for it.
func AgentFile(dir string, node host.Root) *File { return fileOf(AgentKind, dir, node) }

// ClassFile returns the file of the agent's spec of another class in dir.
func ClassFile(class config.Class, dir string, node host.Root) *File {
	return fileOf(AgentKindOf(class), dir, node)
}

func fileOf(kind, dir string, node host.Root) *File {
	vendor, class := parser.ParseQualifier(kind)
	return NewFile(filepath.Join(dir, cdi.GenerateSpecName(vendor, class)+".json"), JSON, node)
}

// Put makes the file hold spec, and proves that it can be used. It writes only
// what is not there already, and says whether it did. A spec that cannot be
// used leaves the file as it was before; beside a foreign file that defines the
// same devices it is written all the same, for the day that file is removed.
func (f *File) Put(spec *specs.Spec) (written bool, err error) {
	f.put = ""
	written, err = f.replace(spec)
	if err != nil {
		return false, err
	}
	f.needed = needs(spec)
	f.put, err = f.state()
	return written, errors.Join(err, f.rivals(spec))
}

// Verify proves that the file, as it is, can be used.
func (f *File) Verify() error {
	spec, err := cdi.ReadSpec(f.Path, 0)
	if err != nil {
		return fmt.Errorf("reading the CDI spec: %w", err)
	}
	return errors.Join(prove(f.Path, f.node), f.rivals(spec.Spec))
}

// Touched says whether since the latest good Put anybody has changed a spec in
// the directory, or something of the node that the spec needs.
func (f *File) Touched() bool {
	now, err := f.state()
	return err != nil || f.put == "" || now != f.put
}

// state tells one state of the directory's specs, and of the node, from another.
func (f *File) state() (string, error) {
	listed, err := f.listing()
	if err != nil {
		return "", err
	}
	return listed + f.fingerprint(), nil
}

func (f *File) replace(spec *specs.Spec) (written bool, err error) {
	data, err := f.format.Marshal(spec)
	if err != nil {
		return false, err
	}
	check := func(path string) error { return prove(path, f.node) }

	if have, err := os.ReadFile(f.Path); err == nil && bytes.Equal(have, data) {
		return false, check(f.Path)
	}
	if err := os.MkdirAll(filepath.Dir(f.Path), dirMode); err != nil {
		return false, fmt.Errorf("making the CDI directory: %w", err)
	}
	if err := host.WriteFile(f.Path, data, specMode, check); err != nil {
		return false, err
	}
	return true, nil
}

// prove reads the spec at path as a runtime would, applies each of its devices
// to an empty OCI spec, and looks for everything that it mounts.
func prove(path string, node host.Root) error {
	spec, err := cdi.ReadSpec(path, 0)
	if err != nil {
		return fmt.Errorf("reading the CDI spec back: %w", err)
	}
	var errs []error
	for _, d := range spec.Devices {
		if err := spec.GetDevice(d.Name).ApplyEdits(&oci.Spec{}); err != nil {
			errs = append(errs, fmt.Errorf("applying CDI device %s: %w", d.Name, err))
		}
	}
	if err := spec.ApplyEdits(&oci.Spec{}); err != nil {
		errs = append(errs, fmt.Errorf("applying what all devices of %s share: %w", spec.Kind, err))
	}
	for _, source := range sources(spec.Spec) {
		if _, err := node.Stat(source); err != nil {
			errs = append(errs, fmt.Errorf("looking for what the CDI spec mounts and runs: %w", err))
		}
	}
	return errors.Join(errs...)
}

// sources are the files of the node that a spec mounts or runs, sorted. Each
// library is mounted at several places.
func sources(spec *specs.Spec) []string {
	var files []string
	for _, m := range spec.ContainerEdits.Mounts {
		files = append(files, m.HostPath)
	}
	for _, h := range spec.ContainerEdits.Hooks {
		files = append(files, h.Path)
	}
	slices.Sort(files)
	return slices.Compact(files)
}
