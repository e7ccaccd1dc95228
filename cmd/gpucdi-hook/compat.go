package main

import (
	"os"
	"path"
	"slices"
	"strconv"
	"strings"
)

// CUDA images have a directory for each release, such as /usr/local/cuda-12.9, and symlinks such as /usr/local/cuda.
// NVIDIA's package cuda-compat installs the forward compatibility libraries in the subdirectory compat of a release:
// libcuda and its dependencies, for nodes with an older driver.
const (
	releasesDir = "usr/local"
	compatDir   = "compat"
	libcudaName = "libcuda.so.1"
)

// maxNames limits the entries read from a directory of the image. Images have a few dozen.
const maxNames = 1024

// compatLibraries returns the container paths of the image's forward compatibility libraries that replace the driver's:
// the libraries of the release with the newest libcuda that is newer than the driver and supports it. Files that cannot
// be read, are outside the root, or are on another mount, are ignored in favor of the driver's libraries.
func compatLibraries(root *os.File, driver version) []string {
	releases, err := listBelow(root, releasesDir, maxNames)
	if err != nil {
		return nil
	}
	slices.Sort(releases)
	var dir string
	var newest version
	for _, release := range releases {
		if release != "cuda" && !strings.HasPrefix(release, "cuda-") {
			continue
		}
		candidate := path.Join(releasesDir, release, compatDir)
		libcuda, ok := compatVersion(root, candidate, driver)
		if ok && slices.Compare(libcuda, newest) > 0 {
			dir, newest = candidate, libcuda
		}
	}
	if dir == "" {
		return nil
	}
	return librariesIn(root, dir)
}

// compatVersion returns the version of the libcuda in a directory, and reports whether it is newer than the driver and
// supports it. libcuda.so.1 is a symlink to a file whose name ends with the version.
func compatVersion(root *os.File, dir string, driver version) (libcuda version, ok bool) {
	file, err := openFile(root, path.Join(dir, libcudaName), 0)
	if err != nil {
		return nil, false
	}
	defer file.Close()
	target, err := os.Readlink(procPath(file))
	if err != nil {
		return nil, false
	}
	suffix, ok := strings.CutPrefix(path.Base(target), "libcuda.so.")
	if libcuda, err = parseVersion(suffix); !ok || err != nil {
		return nil, false
	}
	return libcuda, supportsDriver(file, libcuda, driver)
}

// librariesIn returns the container paths of the libraries in a directory. It includes symlinks, because the SONAMEs
// and libcuda.so are symlinks, and the cache must contain them.
func librariesIn(root *os.File, dir string) (libraries []string) {
	names, err := listBelow(root, dir, maxNames)
	if err != nil {
		return nil
	}
	for _, name := range names {
		if !strings.HasPrefix(name, "lib") || !strings.Contains(name, ".so") {
			continue
		}
		file, err := openFile(root, path.Join(dir, name), 0)
		if err != nil {
			continue
		}
		file.Close()
		libraries = append(libraries, path.Join("/", dir, name))
	}
	return libraries
}

// version is a driver version, such as 580.95.05. The first number is the driver branch.
type version []uint64

func parseVersion(text string) (version, error) {
	var v version
	for field := range strings.SplitSeq(text, ".") {
		number, err := strconv.ParseUint(field, 10, 32)
		if err != nil {
			return nil, err
		}
		v = append(v, number)
	}
	return v, nil
}
