package cdi

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"syscall"

	oci "github.com/opencontainers/runtime-spec/specs-go"
	"tags.cncf.io/container-device-interface/pkg/cdi"
	"tags.cncf.io/container-device-interface/pkg/parser"
	"tags.cncf.io/container-device-interface/specs-go"

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
	Path    string
	format  Format
	node    host.Root
	foreign foreignSpecs

	// Of the latest good Put: what is in the spec, and the state it was left in.
	kind            string
	devices, needed []string
	put             string
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
func ClassFile(class Class, dir string, node host.Root) *File {
	return fileOf(AgentKindOf(class), dir, node)
}

func fileOf(kind, dir string, node host.Root) *File {
	vendor, class := parser.ParseQualifier(kind)
	return NewFile(filepath.Join(dir, cdi.GenerateSpecName(vendor, class)+".json"), JSON, node)
}

// Put makes the file hold spec, and proves that it can be used. It writes only
// what is not there already, and says whether it did. A spec that cannot be
// used leaves the file as it was before. Beside a conflicting spec of others it is
// written all the same, for the day that file is removed; the error names the file.
func (f *File) Put(spec *specs.Spec) (written bool, err error) {
	f.put = ""
	written, err = f.replace(spec)
	if err != nil {
		return false, err
	}
	f.kind, f.devices, f.needed = spec.Kind, deviceNames(spec), needs(spec)
	f.put, err = f.state()
	return written, errors.Join(err, f.foreign.conflicts(f.devices))
}

// Verify proves that the file, as it is, can be used.
func (f *File) Verify() error {
	spec, err := readSpec(f.Path)
	if err != nil {
		return fmt.Errorf("reading the CDI spec: %w", err)
	}
	return errors.Join(
		prove(spec, f.node),
		f.foreign.refresh(f.Path, spec.Kind),
		f.foreign.conflicts(deviceNames(spec.Spec)))
}

// Unchecked returns an error that names the specs of others in the directory that the latest Put
// or Verify did not check for conflicts, and why: runtimes may read more than is safe here.
func (f *File) Unchecked() error { return f.foreign.unchecked() }

// Touched returns whether anything has changed since the latest good Put that makes another one
// necessary: the file, conflicting specs, or what the spec needs of the node.
func (f *File) Touched() bool {
	if f.put == "" {
		return true
	}
	now, err := f.state()
	return err != nil || now != f.put
}

// state distinguishes states of the file and of what its use depends on.
func (f *File) state() (string, error) {
	info, err := os.Stat(f.Path)
	if err != nil {
		return "", fmt.Errorf("inspecting the CDI spec: %w", err)
	}
	if err := f.foreign.refresh(f.Path, f.kind); err != nil {
		return "", err
	}
	return fmt.Sprintln(identity(info), f.foreign.conflicts(f.devices), f.foreign.unchecked()) + f.fingerprint(), nil
}

func (f *File) replace(spec *specs.Spec) (written bool, err error) {
	data, err := f.format.Marshal(spec)
	if err != nil {
		return false, err
	}
	if f.holds(data) {
		return false, proveFile(f.Path, f.node)
	}
	if err := os.MkdirAll(filepath.Dir(f.Path), dirMode); err != nil {
		return false, fmt.Errorf("making the CDI directory: %w", err)
	}
	check := func(path string) error { return proveFile(path, f.node) }
	if err := host.WriteFile(f.Path, data, specMode, check); err != nil {
		return false, err
	}
	return true, nil
}

// holds returns whether the file has that content, is readable by everybody, and can be changed by
// no other user: the spec decides what containers get of the node.
func (f *File) holds(data []byte) bool {
	info, err := os.Stat(f.Path)
	if err != nil || info.Mode()&0o444 != 0o444 || info.Mode()&0o022 != 0 || !ownedByUs(info) {
		return false
	}
	have, err := host.ReadFile(f.Path, maxSpec)
	return err == nil && bytes.Equal(have, data)
}

func ownedByUs(info fs.FileInfo) bool {
	stat, ok := info.Sys().(*syscall.Stat_t)
	return ok && int(stat.Uid) == os.Geteuid()
}

// proveFile is as prove, for a file that this process has written.
func proveFile(path string, node host.Root) error {
	data, err := host.ReadFile(path, maxSpec)
	if err != nil {
		return fmt.Errorf("reading the CDI spec back: %w", err)
	}
	spec, err := parseSpec(path, data)
	if err != nil {
		return fmt.Errorf("reading the CDI spec back: %w", err)
	}
	return prove(spec, node)
}

// prove applies each device of a spec to an empty OCI spec, as a runtime would,
// and looks for everything that it mounts.
func prove(spec *cdi.Spec, node host.Root) error {
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
	for _, h := range spec.ContainerEdits.Hooks {
		if info, err := node.Stat(h.Path); err == nil && (!info.Mode().IsRegular() || info.Mode()&0o111 == 0) {
			errs = append(errs, fmt.Errorf("inspecting the hook of the CDI spec: %s is not an executable file", h.Path))
		}
	}
	return joinFew(errs)
}

func deviceNames(spec *specs.Spec) []string {
	names := make([]string, len(spec.Devices))
	for i, d := range spec.Devices {
		names[i] = d.Name
	}
	return names
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
