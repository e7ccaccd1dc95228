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

// readCSVs reads the files in which JetPack lists what a container needs of the
// integrated GPU's driver. What they list and the host has not is left out:
// they are of all Jetsons at once.
func readCSVs(node host.Root, pattern string) ([]Node, Parts, error) {
	files, err := node.Glob(pattern)
	if err != nil {
		return nil, Parts{}, err
	}
	if len(files) == 0 {
		return nil, Parts{}, fmt.Errorf("there is no %s: install nvidia-l4t-core and nvidia-l4t-cuda", pattern)
	}
	var nodes []Node
	var parts Parts
	for _, file := range files {
		data, err := node.ReadFile(file)
		if err != nil {
			return nil, Parts{}, err
		}
		listed, err := parseCSV(data)
		if err != nil {
			return nil, Parts{}, fmt.Errorf("reading %s: %w", file, err)
		}
		for _, l := range listed {
			if l.node {
				found, err := findNodes(node, []string{l.path})
				if err != nil {
					return nil, Parts{}, err
				}
				nodes = append(nodes, found...)
				continue
			}
			if err := parts.addListed(node, l.path); err != nil {
				return nil, Parts{}, err
			}
		}
	}
	return nodes, parts, nil
}

// addListed adds what is listed where it is, and libraries where loaders look for them, too: the
// directory that they are in is theirs alone. JetPack lists libcuda.so.1.1, and not libcuda.so.1,
// which programs are linked against.
func (p *Parts) addListed(node host.Root, name string) error {
	binds, err := bindsOf(node, from{path: name})
	if err != nil {
		return err
	}
	p.Binds = append(p.Binds, binds...)
	for _, b := range binds {
		base := path.Base(b.ContainerPath)
		if !strings.Contains(base, ".so") {
			continue
		}
		library, err := readLibrary(node, b.ContainerPath)
		if errors.Is(err, errUnusableName) || errors.Is(err, errOtherMachine) || errors.Is(err, errNotELF) {
			continue // errNotELF: a linker's script, or a file that describes a library
		}
		if err != nil {
			return err
		}
		if strings.HasSuffix(base, ".so") { // programs open it by hand
			library.Also = []string{base}
		}
		p.Libraries = append(p.Libraries, library)
	}
	return nil
}

// listedFile is a line of such a file.
type listedFile struct {
	node bool
	path string // absolute, may be a pattern
}

// The limits of a file. JetPack lists some hundred files, and each is looked for.
const (
	maxListed   = 5000
	maxProblems = 20
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
			if len(errs) == maxProblems {
				break
			}
			errs = append(errs, fmt.Errorf("line %d is not dev, lib, dir or sym and an absolute path: %q", number, line))
			continue
		}
		if len(listed) == maxListed {
			errs = append(errs, fmt.Errorf("more than %d files are listed", maxListed))
			break
		}
		listed = append(listed, listedFile{node: kind == "dev", path: path.Clean(name)})
	}
	return listed, errors.Join(append(errs, lines.Err())...)
}
