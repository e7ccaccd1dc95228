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

// addToCache puts libraries into the image's cache, in its /etc, where glibc's loader looks first.
func addToCache(etc *os.File, libraries []string) error {
	cache, err := readCache(etc)
	if err != nil {
		return err
	}
	misleading := cache.Put(libraries...)
	err = replace(etc, cacheName, cache.Bytes())
	// crun has made a root read-only by now that is to be so. The loader finds in its directories
	// what the cache does not lead elsewhere.
	if errors.Is(err, unix.EROFS) && !misleading {
		return nil
	}
	return err
}

// readCache reads the cache in etc; one that is not there is empty.
func readCache(etc *os.File) (*ldcache.Cache, error) {
	data, err := read(etc, cacheName, ldcache.MaxSize+1)
	if errors.Is(err, unix.ENOENT) {
		return new(ldcache.Cache), nil
	}
	if err != nil {
		return nil, err
	}
	return ldcache.Parse(data)
}

// read returns what is in a file in dir, at most limit bytes of it. A link is an error.
func read(dir *os.File, name string, limit int64) ([]byte, error) {
	file, err := openFile(dir, name, unix.O_NOFOLLOW)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	return io.ReadAll(io.LimitReader(file, limit))
}

// replace gives name in dir another content. Whatever had the name is not written to: it may
// have other names.
func replace(dir *os.File, name string, data []byte) error {
	temporary := "." + name + "." + rand.Text()
	fd, err := unix.Openat(int(dir.Fd()), temporary, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o644)
	if err != nil {
		return &os.PathError{Op: "create", Path: path.Join("/", dir.Name(), temporary), Err: err}
	}
	file := os.NewFile(uintptr(fd), temporary)
	_, err = file.Write(data)
	err = errors.Join(err, file.Chmod(0o644), file.Close()) // whatever the umask
	if err == nil {
		err = unix.Renameat(int(dir.Fd()), temporary, int(dir.Fd()), name)
	}
	if err != nil {
		return errors.Join(err, unix.Unlinkat(int(dir.Fd()), temporary, 0))
	}
	return nil
}
