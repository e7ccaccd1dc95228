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
func readCSVs(node host.Root, pattern string) ([]Node, []Bind, error) {
	files, err := node.Glob(pattern)
	if err != nil {
		return nil, nil, err
	}
	if len(files) == 0 {
		return nil, nil, fmt.Errorf("there is no %s: install nvidia-l4t-core and nvidia-l4t-cuda", pattern)
	}
	var nodes []Node
	var binds []Bind
	for _, file := range files {
		data, err := node.ReadFile(file)
		if err != nil {
			return nil, nil, err
		}
		listed, err := parseCSV(data)
		if err != nil {
			return nil, nil, fmt.Errorf("reading %s: %w", file, err)
		}
		for _, l := range listed {
			if l.node {
				found, err := findNodes(node, []string{l.path})
				if err != nil {
					return nil, nil, err
				}
				nodes = append(nodes, found...)
				continue
			}
			found, err := listedBinds(node, l.path)
			if err != nil {
				return nil, nil, err
			}
			binds = append(binds, found...)
		}
	}
	slices.SortFunc(binds, func(a, b Bind) int { return strings.Compare(a.ContainerPath, b.ContainerPath) })
	return nodes, slices.CompactFunc(binds, func(a, b Bind) bool { return a.ContainerPath == b.ContainerPath }), nil
}

// listedBinds mounts what is listed where it is, and libraries where loaders
// look for them, too: theirs is a directory of their own.
func listedBinds(node host.Root, name string) ([]Bind, error) {
	binds, err := bindsOf(node, from{path: name})
	if err != nil || !strings.Contains(path.Base(name), ".so") {
		return binds, err
	}
	libraries, err := bindsOf(node, from{path: name, at: loaderDirs(hostMachine)})
	return append(binds, libraries...), err
}

// listedFile is a line of such a file.
type listedFile struct {
	node bool
	path string // absolute, may be a pattern
}

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
			errs = append(errs, fmt.Errorf("line %d is not dev, lib, dir or sym and an absolute path: %q", number, line))
			continue
		}
		listed = append(listed, listedFile{node: kind == "dev", path: path.Clean(name)})
	}
	return listed, errors.Join(append(errs, lines.Err())...)
}
