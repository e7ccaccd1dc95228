package cdi

import (
	"encoding/json"
	"fmt"
	"path"
	"strings"

	"github.com/gpucdi/gpucdi/internal/host"
)

// NixOS patches driver files to reference each other by path in the Nix store, which containers lack (nixpkgs,
// pkgs/os-specific/linux/nvidia-x11/builder.sh).

// nixStore is the Nix store. Images of other distributions have no files there.
const nixStore = "/nix/store/"

// unpatchedProgram returns the unpatched binary of a program, symlinks resolved, or program itself if there is none.
// The patched one has an ELF interpreter in the Nix store; NixOS keeps the unpatched one in origBin, for containers.
func unpatchedProgram(root host.DriverRoot, program string) (string, error) {
	dir, name := path.Split(program)
	unpatched := path.Join(dir, "../origBin", name)
	if path.Base(dir) != "bin" || !isFile(root, unpatched) {
		return program, nil
	}
	return root.Resolve(unpatched)
}

// referencedLibraries returns bind mounts for the libraries in the Nix store that an ICD or layer file of OpenCL,
// GLVND, EGL or Vulkan references by absolute path. Mounts at other paths could hide files of the image.
func referencedLibraries(root host.DriverRoot, file string) ([]Bind, error) {
	var parse func(text []byte) []string
	switch path.Ext(file) {
	case ".icd":
		parse = parseICD
	case ".json":
		parse = parseManifest
	default:
		return nil, nil
	}
	text, err := root.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("reading library paths from %s: %w", root.NodePath(file), err)
	}
	var binds []Bind
	for _, library := range parse(text) {
		library = path.Clean(library)
		if !strings.HasPrefix(library, nixStore) || !isPath(library) || !isFile(root, library) {
			continue
		}
		resolved, err := root.Resolve(library)
		if err != nil {
			return nil, fmt.Errorf("resolving %s, referenced by %s: %w", library, root.NodePath(file), err)
		}
		if isPath(root.NodePath(resolved)) {
			binds = append(binds, Bind{HostPath: root.NodePath(resolved), ContainerPath: library})
		}
	}
	return binds, nil
}

// parseICD returns the library of an OpenCL ICD file (cl_khr_icd), its only content.
func parseICD(text []byte) []string { return []string{strings.TrimSpace(string(text))} }

// parseManifest returns the libraries of a manifest of GLVND, EGL external platforms, or Vulkan drivers and layers;
// none if it is malformed.
func parseManifest(text []byte) (libraries []string) {
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
		libraries = append(libraries, l.Path)
	}
	return libraries
}

func isFile(root host.DriverRoot, name string) bool {
	info, err := root.Stat(name)
	return err == nil && info.Mode().IsRegular()
}
