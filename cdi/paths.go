package cdi

import (
	"errors"
	"path"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Linux's limits, in bytes.
const (
	maxName = 255
	maxPath = 4095
)

// errUnusableName is returned for a file that cannot be named in a spec.
var errUnusableName = errors.New("its name is not plain text")

// isFileName returns whether a name that the driver's files give can be that of a file in a
// container. A path would lead to another directory than the one that is meant for it, and a spec,
// which is text, cannot hold any bytes.
func isFileName(name string) bool {
	return name != "." && name != ".." && name != "" && len(name) <= maxName && !strings.Contains(name, "/") && isPrintable(name)
}

// isPath returns whether a path can be in a spec.
func isPath(name string) bool {
	return path.IsAbs(name) && path.Clean(name) == name && len(name) <= maxPath && isPrintable(name)
}

func isPrintable(text string) bool {
	return utf8.ValidString(text) && !strings.ContainsFunc(text, func(r rune) bool { return !unicode.IsPrint(r) })
}

// imageDirs are directories in which images have files of their own.
var imageDirs = slices.Concat(bin, xorgModules, []string{
	"/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64", "/usr/sbin", "/usr/local/bin", "/usr/share", "/usr/include", "/var/lib",
})

// hidesImage returns whether a mount at a path would hide the files of an image, as one over a
// directory does.
func hidesImage(at string) bool {
	return path.Dir(path.Clean(at)) == "/" || slices.ContainsFunc(imageDirs, func(dir string) bool {
		return dir == at || strings.HasPrefix(dir, at+"/")
	})
}
