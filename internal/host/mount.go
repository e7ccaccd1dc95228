package host

import (
	"os"
	"syscall"
)

// IsRemoved reports whether the directory at path was removed. Only a mount keeps the path of such a directory: no file
// can be created in it, and a new directory at its path on the node stays invisible until that one is mounted.
func IsRemoved(path string) bool {
	info, err := os.Stat(path)
	if err != nil {
		return false
	}
	stat, ok := info.Sys().(*syscall.Stat_t)
	return ok && info.IsDir() && stat.Nlink == 0
}
