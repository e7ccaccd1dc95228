package kubelet

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
)

// socketStart begins the names of our sockets, whatever the resource.
const socketStart = "gpucdi-"

const maxSocketPath = 107 // bytes; sockaddr_un has 108 with the final zero

// socketPath returns a new path for a server's socket. Each registration has
// a path of its own: the kubelet of 1.37 refuses one that it still knows.
func (p *Plugin) socketPath() string {
	return filepath.Join(p.cfg.Dir, fmt.Sprintf("%s%08x.sock", p.socketPrefix(), rand.Uint32()))
}

func (p *Plugin) socketPrefix() string {
	return socketStart + strings.ReplaceAll(p.cfg.Resource, "/", "_") + "-"
}

// ours says whether a file of this name is a socket of a plugin for this
// resource, this process's or an earlier one's.
func (p *Plugin) ours(name string) bool {
	rest, ours := strings.CutPrefix(name, p.socketPrefix())
	return ours && uniquePart.MatchString(rest)
}

var uniquePart = regexp.MustCompile(`^[0-9a-f]{8}\.sock$`)

// Leftover reports whether a device-plugins directory has a socket of an agent of ours. The
// kubelet deletes all sockets when it starts, and an agent that ends leaves its own: one that is
// there when an agent starts shows that the kubelet has not started since the last agent ended.
func Leftover(dir string) (bool, error) {
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return false, fmt.Errorf("looking for sockets of an earlier agent: %w", err)
	}
	return slices.ContainsFunc(entries, anyOfOurs), nil
}

// anyOfOurs reports whether a file is a socket of an agent of ours, for any resource.
func anyOfOurs(e fs.DirEntry) bool {
	rest, ours := strings.CutPrefix(e.Name(), socketStart)
	at := strings.LastIndex(rest, "-")
	return ours && at > 0 && e.Type() == fs.ModeSocket && uniquePart.MatchString(rest[at+1:])
}

// removeStale removes the sockets for the resource that an earlier process left behind.
func (p *Plugin) removeStale(ctx context.Context) error {
	entries, err := os.ReadDir(p.cfg.Dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	problems := []error{err}
	for _, e := range entries {
		path := filepath.Join(p.cfg.Dir, e.Name())
		if e.Type() == fs.ModeSocket && p.ours(e.Name()) && !serves(ctx, path) {
			problems = append(problems, os.Remove(path))
		}
	}
	return errors.Join(problems...)
}

// identity tells a file from another that takes its name later, even when
// the inode number is used again.
type identity struct {
	dev, inode uint64
	changed    syscall.Timespec
}

func identify(path string) (identity, error) {
	info, err := os.Lstat(path)
	if err != nil {
		return identity{}, err
	}
	stat := info.Sys().(*syscall.Stat_t)
	return identity{stat.Dev, stat.Ino, stat.Mtim}, nil
}
