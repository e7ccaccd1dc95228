package cdi

import (
	"errors"
	"path"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Limits of Linux, in bytes.
const (
	maxName = 255
	maxPath = 4095
)

// errUnusableName is returned for a file whose path is not valid in a spec.
var errUnusableName = errors.New("file name is not printable")

// isFileName reports whether a name from a driver file is valid as a file name in a container. A path could select
// another directory, and a spec can contain only printable text.
func isFileName(name string) bool {
	return name != "." && name != ".." && name != "" && len(name) <= maxName && !strings.Contains(name, "/") && isPrintable(name)
}

// isPath reports whether a path is valid in a spec: absolute, clean and printable.
func isPath(name string) bool {
	return path.IsAbs(name) && path.Clean(name) == name && len(name) <= maxPath && isPrintable(name)
}

func isPrintable(text string) bool {
	return utf8.ValidString(text) && !strings.ContainsFunc(text, func(r rune) bool { return !unicode.IsPrint(r) })
}

// imageDirs are directories that commonly contain files of images.
var imageDirs = slices.Concat(bin, xorgModules, []string{
	"/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64", "/usr/sbin", "/usr/local/bin", "/usr/share", "/usr/include", "/var/lib",
})

// hidesImage reports whether a mount over a directory would hide files of images.
func hidesImage(containerPath string) bool {
	return path.Dir(path.Clean(containerPath)) == "/" || slices.ContainsFunc(imageDirs, func(dir string) bool {
		return dir == containerPath || strings.HasPrefix(dir, containerPath+"/")
	})
}
