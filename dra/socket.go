package dra

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/gpucdi/gpucdi/internal/sockets"
)

// Directories that the kubelet creates in its root directory. pluginMode is the mode of the driver's directory in
// pluginsDir.
const (
	registryDir = "plugins_registry"
	pluginsDir  = "plugins"
	pluginMode  = 0o750
)

// socketPrefix is the prefix of registration sockets.
const socketPrefix = "gpucdi-"

func (d *Driver) registryDir() string { return filepath.Join(d.cfg.KubeletDir, registryDir) }
func (d *Driver) pluginDir() string   { return filepath.Join(d.cfg.KubeletDir, pluginsDir, d.cfg.Driver) }

// socketPaths returns new paths for the registration socket and the service socket. They are unique to each
// registration: the kubelet rejects an endpoint that is still registered.
func (d *Driver) socketPaths() (registration, service string) {
	unique := fmt.Sprintf("%08x.sock", rand.Uint32())
	return filepath.Join(d.registryDir(), d.registrationPrefix()+unique), filepath.Join(d.pluginDir(), servicePrefix+unique)
}

func (d *Driver) registrationPrefix() string { return socketPrefix + d.cfg.Driver + "-" }

const servicePrefix = "dra-"

var uniqueSuffix = regexp.MustCompile(`^[0-9a-f]{8}\.sock$`)

// isRegistrationSocket reports whether name is that of a registration socket of an agent for this driver.
func (d *Driver) isRegistrationSocket(name string) bool {
	suffix, ok := strings.CutPrefix(name, d.registrationPrefix())
	return ok && uniqueSuffix.MatchString(suffix)
}

// isServiceSocket reports whether name is that of a service socket of an agent.
func isServiceSocket(name string) bool {
	suffix, ok := strings.CutPrefix(name, servicePrefix)
	return ok && uniqueSuffix.MatchString(suffix)
}

// isRelevant reports whether a file in the registry may belong to a process that serves this driver. The agent does not
// connect to others: some plugins count any connection as one from the kubelet.
func (d *Driver) isRelevant(name string) bool { return strings.Contains(name, d.cfg.Driver) }

// removeStaleSockets removes the sockets that killed agents have left behind.
func (d *Driver) removeStaleSockets(ctx context.Context) error {
	var errs []error
	for dir, own := range map[string]func(string) bool{d.registryDir(): d.isRegistrationSocket, d.pluginDir(): isServiceSocket} {
		entries, err := os.ReadDir(dir)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, err)
		}
		for _, e := range entries {
			path := filepath.Join(dir, e.Name())
			if e.Type() == fs.ModeSocket && own(e.Name()) && !sockets.HasListener(ctx, path) {
				errs = append(errs, os.Remove(path))
			}
		}
	}
	return errors.Join(errs...)
}
