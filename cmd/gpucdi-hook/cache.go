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

// Where the cache is in a root file system.
const (
	cacheDir  = "etc"
	cacheName = "ld.so.cache"
)

// addToCache puts libraries into the cache of the image in root. An image without an /etc is
// left as it is: its loader, if it has one, searches its directories.
func addToCache(root *os.File, libraries []string) error {
	dir, err := openBelow(root, cacheDir, unix.O_DIRECTORY)
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	if err != nil {
		return err
	}
	defer dir.Close()
	cache, err := readCache(dir)
	if err != nil {
		return err
	}
	misleading := false
	for _, library := range libraries {
		misleading = cache.Put(library) || misleading
	}
	err = replace(dir, cacheName, cache.Bytes())
	// crun has made a root read-only by now that is to be so. The loader finds in its directories
	// what the cache does not lead elsewhere.
	if errors.Is(err, unix.EROFS) && !misleading {
		return nil
	}
	return err
}

// readCache reads the cache in dir; one that is not there is empty.
func readCache(dir *os.File) (*ldcache.Cache, error) {
	file, err := openFile(dir, cacheName, unix.O_NOFOLLOW)
	if errors.Is(err, unix.ENOENT) {
		return new(ldcache.Cache), nil
	}
	if err != nil {
		return nil, err
	}
	defer file.Close()
	data, err := io.ReadAll(io.LimitReader(file, ldcache.MaxSize+1))
	if err != nil {
		return nil, err
	}
	return ldcache.Parse(data)
}

// replace gives name in dir another content. Whatever had the name is not written to: it may
// have other names.
func replace(dir *os.File, name string, data []byte) error {
	temporary := "." + name + "." + rand.Text()
	fd, err := unix.Openat(int(dir.Fd()), temporary, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o644)
	if err != nil {
		return &os.PathError{Op: "create", Path: path.Join("/", cacheDir, temporary), Err: err}
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
