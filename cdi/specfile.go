package cdi

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	oci "github.com/opencontainers/runtime-spec/specs-go"
	"tags.cncf.io/container-device-interface/pkg/cdi"
	"tags.cncf.io/container-device-interface/pkg/parser"
	"tags.cncf.io/container-device-interface/specs-go"

	"github.com/gpucdi/gpucdi/internal/host"
)

// Specs are readable by runtimes and unprivileged tools.
const (
	specMode = 0o644
	dirMode  = 0o755
)

// File is a spec in a CDI directory of a container runtime. Only specs of MPS clients are ever removed: when a
// container restarts, the kubelet requests the same device names again, even while the agent is stopped. The methods of
// File are not safe for concurrent use, except Watch.
type File struct {
	Path    string
	format  Format
	root    host.Root
	foreign foreignSpecs

	// Set by the last Put, even if it found conflicts; state is "" if it did not verify the file.
	kind                  string
	devices, dependencies []string
	state                 string
	changed               bool // see Changed
}

// NewFile returns the spec file at path. The host paths in the spec are resolved below root.
func NewFile(path string, format Format, root host.Root) *File {
	return &File{Path: path, format: format, root: root}
}

// AgentFile returns the file of the agent's GPU spec in dir. It is JSON, because encoding YAML takes six times as long,
// and delays advertising the devices.
func AgentFile(dir string, root host.Root) *File { return agentFile(AgentKind, dir, root) }

// ClassFile returns the file of the agent's spec of a class in dir.
func ClassFile(class Class, dir string, root host.Root) *File {
	return agentFile(AgentClassKind(class), dir, root)
}

func agentFile(kind, dir string, root host.Root) *File {
	vendor, class := parser.ParseQualifier(kind)
	return NewFile(filepath.Join(dir, cdi.GenerateSpecName(vendor, class)+".json"), JSON, root)
}

// Put writes spec to the file unless it has that content already, verifies that runtimes can use it, and reports
// whether it wrote the file. An unusable spec leaves the file unchanged. A conflicting spec does not prevent the write,
// so that the file takes effect once that spec is removed; the error names it.
func (f *File) Put(spec *specs.Spec) (written bool, err error) {
	before := f.state
	f.state = ""
	f.kind, f.devices, f.dependencies = spec.Kind, deviceNames(spec), dependencies(spec)
	verified := f.fingerprint() // taken first, so that a change during the verification makes the file stale
	f.changed = !strings.HasSuffix(before, verified)
	written, err = f.replace(spec)
	if err != nil {
		return false, err
	}
	f.state, err = f.currentState(verified)
	return written, errors.Join(err, f.foreign.conflicts(f.devices))
}

// Verify returns an error unless runtimes can use the file in its current state.
func (f *File) Verify() error {
	spec, err := readSpec(f.Path)
	if err != nil {
		return fmt.Errorf("reading the CDI spec: %w", err)
	}
	return errors.Join(
		verify(spec, f.root),
		f.foreign.refresh(f.Path, spec.Kind),
		f.foreign.conflicts(deviceNames(spec.Spec)))
}

// Unchecked returns an error for each foreign spec that the last Put, Verify or Stale did not check for conflicts,
// because it exceeds a limit or this process may not read it. Runtimes have no such limits.
func (f *File) Unchecked() error { return f.foreign.unchecked() }

// Has reports whether the file has the content that a Put of spec would write.
func (f *File) Has(spec *specs.Spec) bool {
	data, err := f.format.Marshal(spec)
	return err == nil && f.hasContent(data)
}

// Stale reports whether another Put is necessary, because the file, conflicting specs, or host files that the spec
// depends on have changed since the last Put, or because that Put did not verify the file.
func (f *File) Stale() bool {
	if f.state == "" {
		return true
	}
	now, err := f.currentState(f.fingerprint())
	return err != nil || now != f.state
}

// Changed reports whether the host files that the spec depends on had changed when Put was last called. They may have
// changed after the caller inspected them, so it has to inspect them again, and call Put.
func (f *File) Changed() bool { return f.changed }

// currentState returns a text that changes with the file, with conflicting specs, and with the fingerprint of the host
// files that the spec depends on, with which it ends.
func (f *File) currentState(fingerprint string) (string, error) {
	info, err := os.Stat(f.Path)
	if err != nil {
		return "", fmt.Errorf("inspecting the CDI spec: %w", err)
	}
	if err := f.foreign.refresh(f.Path, f.kind); err != nil {
		return "", err
	}
	return fmt.Sprintln(identity(info), f.foreign.conflicts(f.devices), f.foreign.unchecked()) + fingerprint, nil
}

func (f *File) replace(spec *specs.Spec) (written bool, err error) {
	data, err := f.format.Marshal(spec)
	if err != nil {
		return false, err
	}
	if f.hasContent(data) {
		return false, verifyFile(f.Path, f.root)
	}
	if err := os.MkdirAll(filepath.Dir(f.Path), dirMode); err != nil {
		return false, fmt.Errorf("creating the CDI directory: %w", err)
	}
	check := func(path string) error { return verifyFile(path, f.root) }
	if err := host.WriteFile(f.Path, data, specMode, check); err != nil {
		return false, err
	}
	return true, nil
}

// hasContent reports whether the file has that content, is readable by all users, and is writable at most by the user
// of this process: specs decide which host files containers can access.
func (f *File) hasContent(data []byte) bool {
	info, err := os.Stat(f.Path)
	if err != nil || info.Mode()&0o444 != 0o444 || info.Mode()&0o022 != 0 || !isOwned(info) {
		return false
	}
	current, err := host.ReadFile(f.Path, maxSpec)
	return err == nil && bytes.Equal(current, data)
}

func isOwned(info fs.FileInfo) bool {
	stat, ok := info.Sys().(*syscall.Stat_t)
	return ok && int(stat.Uid) == os.Geteuid()
}

// verifyFile reads the file at path, whose content this process encoded, and verifies it.
func verifyFile(path string, root host.Root) error {
	data, err := host.ReadFile(path, maxSpec)
	if err != nil {
		return fmt.Errorf("reading the CDI spec back: %w", err)
	}
	spec, err := parseSpec(path, data)
	if err != nil {
		return fmt.Errorf("reading the CDI spec back: %w", err)
	}
	return verify(spec, root)
}

// verify applies each device of a spec to an empty OCI spec, as a runtime would. It also checks that the mounted files
// of its common edits exist, and that the hooks are executable.
func verify(spec *cdi.Spec, root host.Root) error {
	var errs []error
	for _, d := range spec.Devices {
		if err := spec.GetDevice(d.Name).ApplyEdits(&oci.Spec{}); err != nil {
			errs = append(errs, fmt.Errorf("applying CDI device %s: %w", d.Name, err))
		}
	}
	if err := spec.ApplyEdits(&oci.Spec{}); err != nil {
		errs = append(errs, fmt.Errorf("applying the common edits of %s: %w", spec.Kind, err))
	}
	for _, source := range sources(spec.Spec) {
		if _, err := root.Stat(source); err != nil {
			errs = append(errs, fmt.Errorf("checking the mounts and hooks of the CDI spec: %w", err))
		}
	}
	for _, h := range spec.ContainerEdits.Hooks {
		if info, err := root.Stat(h.Path); err == nil && (!info.Mode().IsRegular() || info.Mode()&0o111 == 0) {
			errs = append(errs, fmt.Errorf("checking the hook of the CDI spec: %s is not an executable file", h.Path))
		}
	}
	return joinFirst(errs)
}

func deviceNames(spec *specs.Spec) []string {
	names := make([]string, len(spec.Devices))
	for i, d := range spec.Devices {
		names[i] = d.Name
	}
	return names
}

// sources returns the host paths of mounts and hooks in the common edits, sorted, without duplicates.
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
