package cdi

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"

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

// Store keeps one spec in a directory that the container runtime reads. It
// never removes it: the kubelet asks for the same device names again when a
// container restarts, whether the agent runs or not. Not for concurrent use.
type Store struct {
	Path string // of the spec file
	node host.Root
}

// NewStore returns the store for the spec of kind in dir. node is where the
// spec's sources are looked for.
func NewStore(dir, kind string, node host.Root) *Store {
	vendor, class := parser.ParseQualifier(kind)
	name := cdi.GenerateSpecName(vendor, class) + ".yaml"
	return &Store{Path: filepath.Join(dir, name), node: node}
}

// Put makes the file hold spec, and proves that it can be used. It writes only
// what is not there already, and says whether it did. After an error the file
// is as it was before.
func (s *Store) Put(spec *specs.Spec) (written bool, err error) {
	data, err := Marshal(spec)
	if err != nil {
		return false, fmt.Errorf("rendering the CDI spec of %s: %w", spec.Kind, err)
	}
	check := func(path string) error { return prove(path, s.node) }

	if have, err := os.ReadFile(s.Path); err == nil && bytes.Equal(have, data) {
		return false, check(s.Path)
	}
	if err := os.MkdirAll(filepath.Dir(s.Path), dirMode); err != nil {
		return false, fmt.Errorf("making the CDI directory: %w", err)
	}
	if err := host.WriteFile(s.Path, data, specMode, check); err != nil {
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
	for _, m := range spec.ContainerEdits.Mounts {
		if _, err := node.Stat(m.HostPath); err != nil {
			errs = append(errs, fmt.Errorf("looking for what the CDI spec mounts: %w", err))
		}
	}
	return errors.Join(errs...)
}
