package host

import (
	"os"
	"syscall"
)

// IsRemoved reports whether path is a mount of a directory that was removed. No file can be created in such a
// directory, and the mount does not show a new directory that replaces it.
func IsRemoved(path string) bool {
	info, err := os.Stat(path)
	if err != nil {
		return false
	}
	stat, ok := info.Sys().(*syscall.Stat_t)
	return ok && info.IsDir() && stat.Nlink == 0
}
