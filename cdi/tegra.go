package cdi

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/gpucdi/gpucdi/internal/host"
)

// readCSVs returns the device nodes and files that containers need for the integrated GPU, as listed in JetPack's CSV
// files. Listed files that do not exist are skipped: the lists cover all Jetson models. It returns an error if there is
// no CSV file.
func readCSVs(root host.Root, pattern string) ([]DeviceNode, Parts, error) {
	files, err := root.Glob(pattern)
	if err != nil {
		return nil, Parts{}, err
	}
	if len(files) == 0 {
		return nil, Parts{}, fmt.Errorf("no %s found; install nvidia-l4t-init", pattern)
	}
	var nodes []DeviceNode
	var parts Parts
	for _, file := range files {
		data, err := root.ReadFile(file)
		if err != nil {
			return nil, Parts{}, err
		}
		listed, err := parseCSV(data)
		if err != nil {
			return nil, Parts{}, fmt.Errorf("reading %s: %w", file, err)
		}
		for _, l := range listed {
			if l.isDevice {
				found, err := findNodes(root, []string{l.path})
				if err != nil {
					return nil, Parts{}, err
				}
				nodes = append(nodes, found...)
				continue
			}
			if err := parts.addListed(root, l.path); err != nil {
				return nil, Parts{}, err
			}
		}
	}
	return nodes, parts, nil
}

// addListed adds the files that match a listed path, mounted at the same path. Libraries are also mounted in loader
// directories under their SONAMEs: loaders do not search JetPack's library directory, and programs are linked against
// libcuda.so.1, but JetPack lists libcuda.so.1.1.
func (p *Parts) addListed(root host.Root, name string) error {
	binds, err := bindsOf(root, hostFiles{path: name})
	if err != nil {
		return err
	}
	p.Binds = append(p.Binds, binds...)
	for _, b := range binds {
		base := path.Base(b.ContainerPath)
		if !strings.Contains(base, ".so") {
			continue
		}
		library, err := readLibrary(root, b.ContainerPath)
		if errors.Is(err, errUnusableName) || errors.Is(err, errOtherMachine) || errors.Is(err, errNotELF) {
			continue // errNotELF: a linker script, or data next to a library
		}
		if err != nil {
			return err
		}
		if strings.HasSuffix(base, ".so") { // opened with dlopen by this name
			library.Aliases = []string{base}
		}
		p.Libraries = append(p.Libraries, library)
	}
	return nil
}

// listedFile is a line of a CSV file.
type listedFile struct {
	isDevice bool
	path     string // absolute, may be a pattern
}

// Limits for a CSV file. JetPack's files have a few hundred lines.
const (
	maxListed = 5000 // files
	maxErrors = 20   // malformed lines to report
)

// parseCSV reads lines such as "lib, /usr/lib/aarch64-linux-gnu/tegra/libcuda.so.1.1".
func parseCSV(data []byte) ([]listedFile, error) {
	var listed []listedFile
	var errs []error
	lines := bufio.NewScanner(bytes.NewReader(data))
	for number := 1; lines.Scan(); number++ {
		line := strings.TrimSpace(lines.Text())
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		kind, name, _ := strings.Cut(line, ",")
		kind, name = strings.TrimSpace(kind), strings.TrimSpace(name)
		if !slices.Contains([]string{"dev", "lib", "dir", "sym"}, kind) || !path.IsAbs(name) {
			if len(errs) == maxErrors {
				break
			}
			errs = append(errs, fmt.Errorf("line %d: expected dev, lib, dir or sym and an absolute path, got %q", number, line))
			continue
		}
		if len(listed) == maxListed {
			errs = append(errs, fmt.Errorf("more than %d files listed", maxListed))
			break
		}
		listed = append(listed, listedFile{isDevice: kind == "dev", path: path.Clean(name)})
	}
	return listed, errors.Join(append(errs, lines.Err())...)
}
