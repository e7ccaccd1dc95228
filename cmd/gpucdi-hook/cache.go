package main

import (
	"crypto/rand"
	"errors"
	"io"
	"os"
	"path"

	"golang.org/x/sys/unix"

	"github.com/gpucdi/gpucdi/internal/ldcache"
)

const cacheName = "ld.so.cache"

// addToCache adds libraries to the ld.so.cache in the image's /etc, which glibc's loader searches before its default
// directories.
func addToCache(etc *os.File, libraries []string) error {
	cache, err := readCache(etc)
	if err != nil {
		return err
	}
	replaced := cache.Put(libraries...)
	err = replace(etc, cacheName, cache.Bytes())
	// With crun, a read-only root is already read-only when the hook runs. The loader then finds the driver's libraries
	// in its default directories, unless the cache has others of the same names.
	if errors.Is(err, unix.EROFS) && !replaced {
		return nil
	}
	return err
}

// readCache returns the cache in etc, empty if there is no file.
func readCache(etc *os.File) (*ldcache.Cache, error) {
	data, err := readFile(etc, cacheName, ldcache.MaxSize+1)
	if errors.Is(err, unix.ENOENT) {
		return new(ldcache.Cache), nil
	}
	if err != nil {
		return nil, err
	}
	return ldcache.Parse(data)
}

// readFile reads at most limit bytes of a regular file in dir. A symlink is an error.
func readFile(dir *os.File, name string, limit int64) ([]byte, error) {
	file, err := openFile(dir, name, unix.O_NOFOLLOW)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	return io.ReadAll(io.LimitReader(file, limit))
}

// replace atomically replaces a file in dir. It does not write to the old file, which may have other hard links.
func replace(dir *os.File, name string, data []byte) error {
	temporary := "." + name + "." + rand.Text()
	fd, err := unix.Openat(int(dir.Fd()), temporary, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o644)
	if err != nil {
		return &os.PathError{Op: "create", Path: path.Join("/", dir.Name(), temporary), Err: err}
	}
	file := os.NewFile(uintptr(fd), temporary)
	_, err = file.Write(data)
	err = errors.Join(err, file.Chmod(0o644), file.Close()) // the mode must not depend on the umask
	if err == nil {
		err = unix.Renameat(int(dir.Fd()), temporary, int(dir.Fd()), name)
	}
	if err != nil {
		return errors.Join(err, unix.Unlinkat(int(dir.Fd()), temporary, 0))
	}
	return nil
}
