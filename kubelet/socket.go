package kubelet

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/gpucdi/gpucdi/internal/sockets"
)

// socketPrefix is the prefix of the sockets of all resources.
const socketPrefix = "gpucdi-"

// socketPath returns a new path for a server's socket, unique to each registration: kubelet 1.37 rejects an endpoint
// that is still registered.
func (p *Plugin) socketPath() string {
	return filepath.Join(p.cfg.Dir, fmt.Sprintf("%s%08x.sock", p.resourcePrefix(), rand.Uint32()))
}

// maxResourceInName bounds the part of a socket's name that identifies the resource, whose name may have 300 bytes.
const maxResourceInName = 32

// resourcePrefix returns the prefix of the sockets of the plugin's resource.
func (p *Plugin) resourcePrefix() string {
	name := strings.ReplaceAll(p.cfg.Resource, "/", "_")
	if len(name) > maxResourceInName {
		hash := fnv.New32a()
		_, _ = hash.Write([]byte(name))
		suffix := fmt.Sprintf("~%08x", hash.Sum32())
		name = name[:maxResourceInName-len(suffix)] + suffix
	}
	return socketPrefix + name + "-"
}

// isOwnSocketName reports whether name is that of a socket for the plugin's resource, created by this process or an
// earlier one.
func (p *Plugin) isOwnSocketName(name string) bool {
	suffix, ok := strings.CutPrefix(name, p.resourcePrefix())
	return ok && uniqueSuffix.MatchString(suffix)
}

var uniqueSuffix = regexp.MustCompile(`^[0-9a-f]{8}\.sock$`)

// HasAgentSocket reports whether a device-plugins directory has a socket of a gpucdi agent. The kubelet deletes all
// sockets when it starts, and an agent leaves its own when it ends. A socket found at the start of an agent
// therefore proves that the kubelet has not restarted since the previous agent ended.
func HasAgentSocket(dir string) (bool, error) {
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return false, fmt.Errorf("finding sockets of a previous agent: %w", err)
	}
	return slices.ContainsFunc(entries, isAgentSocket), nil
}

// isAgentSocket reports whether a file is the socket of a gpucdi agent, for any resource.
func isAgentSocket(e fs.DirEntry) bool {
	rest, ok := strings.CutPrefix(e.Name(), socketPrefix)
	i := strings.LastIndex(rest, "-")
	return ok && i > 0 && e.Type() == fs.ModeSocket && uniqueSuffix.MatchString(rest[i+1:])
}

// removeStaleSockets removes sockets of the resource that earlier processes left behind.
func (p *Plugin) removeStaleSockets(ctx context.Context) error {
	entries, err := os.ReadDir(p.cfg.Dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	errs := []error{err}
	for _, e := range entries {
		path := filepath.Join(p.cfg.Dir, e.Name())
		if e.Type() == fs.ModeSocket && p.isOwnSocketName(e.Name()) && !sockets.HasListener(ctx, path) {
			errs = append(errs, os.Remove(path))
		}
	}
	return errors.Join(errs...)
}
