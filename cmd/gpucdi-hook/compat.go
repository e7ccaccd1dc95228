package main

import (
	"os"
	"path"
	"slices"
	"strconv"
	"strings"
)

// An image of CUDA has each release in a directory of its own, /usr/local/cuda-12.9, with links
// to them such as /usr/local/cuda. What NVIDIA's package cuda-compat puts below it is a libcuda
// for nodes whose driver is older than that CUDA, and what goes with it.
const (
	releasesDir = "usr/local"
	compatDir   = "compat"
	libcudaName = "libcuda.so.1"
)

// maxNames bounds what is read of a directory of the image. Those of images have a few dozen.
const maxNames = 1024

// compatLibraries returns the paths, in the container, of the image's own libraries that take
// the place of the driver's: those with the newest libcuda that is newer than the driver, and
// works on it. What cannot be read, or is out of the root or in another mount, is not used: the
// driver's libraries are there.
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
		at := path.Join(releasesDir, release, compatDir)
		its, fits := compatVersion(root, at, driver)
		if fits && slices.Compare(its, newest) > 0 {
			dir, newest = at, its
		}
	}
	if dir == "" {
		return nil
	}
	return librariesIn(root, dir)
}

// compatVersion returns the version of the libcuda in a directory, and whether it is newer than
// the driver and works on it. What programs load is a link to a file with the version in its
// name.
func compatVersion(root *os.File, dir string, driver version) (its version, fits bool) {
	file, err := openFile(root, path.Join(dir, libcudaName), 0)
	if err != nil {
		return nil, false
	}
	defer file.Close()
	target, err := os.Readlink(procPath(file))
	if err != nil {
		return nil, false
	}
	suffix, is := strings.CutPrefix(path.Base(target), "libcuda.so.")
	if its, err = parseVersion(suffix); !is || err != nil {
		return nil, false
	}
	return its, worksOn(file, its, driver)
}

// librariesIn returns the paths of the libraries in a directory, by all their names: the cache
// is asked for SONAMEs, and for libcuda.so.
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

// version is a driver's: 580.95.05. The first number is that of its branch.
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
