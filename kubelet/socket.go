package kubelet

import (
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
)

const maxSocketPath = 107 // bytes; sockaddr_un has 108 with the final zero

// socketPath returns a new path for a server's socket. Each registration has
// a path of its own: the kubelet of 1.37 refuses one that it still knows.
func (p *Plugin) socketPath() string {
	return filepath.Join(p.cfg.Dir, fmt.Sprintf("%s%08x.sock", p.socketPrefix(), rand.Uint32()))
}

func (p *Plugin) socketPrefix() string {
	return "gpucdi-" + strings.ReplaceAll(p.cfg.Resource, "/", "_") + "-"
}

// ours says whether a file of this name is a socket of a plugin for this
// resource, this process's or an earlier one's.
func (p *Plugin) ours(name string) bool {
	rest, ours := strings.CutPrefix(name, p.socketPrefix())
	return ours && uniquePart.MatchString(rest)
}

var uniquePart = regexp.MustCompile(`^[0-9a-f]{8}\.sock$`)

// removeStale removes the sockets that an earlier process left behind when it
// was killed.
func (p *Plugin) removeStale() error {
	entries, err := os.ReadDir(p.cfg.Dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	problems := []error{err}
	for _, e := range entries {
		if e.Type() == fs.ModeSocket && p.ours(e.Name()) {
			problems = append(problems, os.Remove(filepath.Join(p.cfg.Dir, e.Name())))
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
