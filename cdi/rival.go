package cdi

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"tags.cncf.io/container-device-interface/pkg/cdi"
	"tags.cncf.io/container-device-interface/specs-go"
)

// rivals returns an error that names the other files of the directory that
// define a device of spec. A runtime takes such a device from neither, so it
// cannot be given out; and the files belong to somebody else, so they stay.
func (f *File) rivals(spec *specs.Spec) error {
	ours := map[string]bool{}
	for _, d := range spec.Devices {
		ours[d.Name] = true
	}
	others, err := f.others()
	if err != nil {
		return err
	}
	var errs []error
	for _, path := range others {
		other, err := cdi.ReadSpec(path, 0)
		if err != nil || other.Kind != spec.Kind {
			continue // runtimes pass over what they cannot read
		}
		for _, d := range other.Devices {
			if ours[d.Name] {
				errs = append(errs, fmt.Errorf("%s defines %s=%s too, so runtimes take it from neither file: remove that file",
					path, spec.Kind, d.Name))
				break // one device shows it
			}
		}
	}
	return errors.Join(errs...)
}

// others are the other specs of the directory.
func (f *File) others() ([]string, error) {
	entries, err := os.ReadDir(filepath.Dir(f.Path))
	if err != nil {
		return nil, fmt.Errorf("listing the CDI directory: %w", err)
	}
	var paths []string
	for _, e := range entries {
		if path := filepath.Join(filepath.Dir(f.Path), e.Name()); isSpec(path) && path != f.Path {
			paths = append(paths, path)
		}
	}
	return paths, nil
}

// listing tells one state of the directory's specs from another.
func (f *File) listing() (string, error) {
	others, err := f.others()
	if err != nil {
		return "", err
	}
	var listed strings.Builder
	for _, path := range append(others, f.Path) {
		info, err := os.Stat(path)
		if err != nil {
			return "", fmt.Errorf("looking at the CDI directory: %w", err)
		}
		fmt.Fprintln(&listed, path, identity(info))
	}
	return listed.String(), nil
}

// isSpec says whether runtimes read a file of that name.
func isSpec(path string) bool {
	ending := filepath.Ext(path)
	return ending == ".yaml" || ending == ".json"
}
