package cdi

import (
	"encoding/json"
	"fmt"
	"path"
	"strings"

	"github.com/gpucdi/gpucdi/internal/host"
)

// NixOS changes the driver's files so that they find each other in its store, which containers
// do not have (nixpkgs, pkgs/os-specific/linux/nvidia-x11/builder.sh).

// store is the directory of NixOS's packages. No image of another distribution has files there.
const store = "/nix/store/"

// original returns the program as NVIDIA made it, links resolved. NixOS's own starts with a dynamic
// loader of the store; the unchanged one is kept beside it, for containers.
func original(root host.DriverRoot, program string) (string, error) {
	dir, name := path.Split(program)
	unchanged := path.Join(dir, "../origBin", name)
	if path.Base(dir) != "bin" || !isFile(root, unchanged) {
		return program, nil
	}
	return root.Resolve(unchanged)
}

// namedLibraries are those that a file tells a loader of OpenCL, GLVND, EGL or Vulkan to load by
// an absolute path in the store: containers get them at that path, too. Elsewhere a library would
// hide what the image has at its path.
func namedLibraries(root host.DriverRoot, file string) ([]Bind, error) {
	var read func(text []byte) []string
	switch path.Ext(file) {
	case ".icd":
		read = readICD
	case ".json":
		read = readManifest
	default:
		return nil, nil
	}
	text, err := root.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("reading the libraries that %s names: %w", root.NodePath(file), err)
	}
	var named []Bind
	for _, name := range read(text) {
		name = path.Clean(name)
		if !strings.HasPrefix(name, store) || !isPath(name) || !isFile(root, name) {
			continue
		}
		resolved, err := root.Resolve(name)
		if err != nil {
			return nil, fmt.Errorf("looking for %s, which %s names: %w", name, root.NodePath(file), err)
		}
		if isPath(root.NodePath(resolved)) {
			named = append(named, Bind{NodePath: root.NodePath(resolved), ContainerPath: name})
		}
	}
	return named, nil
}

// readICD reads a file for OpenCL's loader (cl_khr_icd): the library is all that is in it.
func readICD(text []byte) []string { return []string{strings.TrimSpace(string(text))} }

// readManifest reads a file for GLVND, EGL's external platforms or Vulkan's drivers and layers.
// One that no loader can read names nothing.
func readManifest(text []byte) (names []string) {
	type library struct {
		Path string `json:"library_path"`
	}
	var manifest struct {
		ICD, Layer library
		Layers     []library
	}
	if json.Unmarshal(text, &manifest) != nil {
		return nil
	}
	for _, l := range append(manifest.Layers, manifest.ICD, manifest.Layer) {
		names = append(names, l.Path)
	}
	return names
}

func isFile(root host.DriverRoot, name string) bool {
	info, err := root.Stat(name)
	return err == nil && info.Mode().IsRegular()
}
