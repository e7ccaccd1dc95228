package container

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"
	"tags.cncf.io/container-device-interface/pkg/cdi"

	"github.com/gpucdi/gpucdi/test/node/images"
)

// Runtime is the path of an OCI runtime in the box.
type Runtime string

// The runtimes of a Machine: runc is built from its module, crun is the Debian package.
const (
	Runc Runtime = "/usr/local/bin/runc"
	Crun Runtime = "/usr/bin/crun"
)

// Spec returns the OCI spec of a container that sleeps, with CDI devices from the specs in the directory of SpecFile.
// It is runc's default spec with containerd's additions: CAP_MKNOD, and permission to create, but not to open, any
// character device node.
func (m *Machine) Spec(ctx context.Context, devices ...string) (*specs.Spec, error) {
	dir, err := m.makeBundle()
	if err != nil {
		return nil, err
	}
	if _, err := m.Output(ctx, string(Runc), "spec", "--bundle", dir); err != nil {
		return nil, err
	}
	data, err := os.ReadFile(m.Path(path.Join(dir, "config.json")))
	if err != nil {
		return nil, fmt.Errorf("reading runc's default spec: %w", err)
	}
	s := new(specs.Spec)
	if err := errors.Join(json.Unmarshal(data, s), os.RemoveAll(m.Path(dir))); err != nil {
		return nil, fmt.Errorf("reading runc's default spec: %w", err)
	}
	s.Version = "1.0.2" // the newest that Debian 12's crun supports
	s.Root.Readonly = false
	s.Process.Terminal = false
	s.Process.Args = []string{"probe", "sleep"}
	for _, set := range []*[]string{
		&s.Process.Capabilities.Bounding, &s.Process.Capabilities.Effective, &s.Process.Capabilities.Permitted,
	} {
		*set = append(*set, "CAP_MKNOD")
	}
	s.Linux.Resources.Devices = append(s.Linux.Resources.Devices,
		specs.LinuxDeviceCgroup{Allow: true, Type: "c", Access: "m"})
	return s, m.inject(s, devices)
}

// inject applies CDI devices to an OCI spec, as containerd does.
func (m *Machine) inject(s *specs.Spec, devices []string) error {
	if len(devices) == 0 {
		return nil
	}
	cache, err := cdi.NewCache(cdi.WithSpecDirs(m.Path(path.Dir(SpecFile))), cdi.WithAutoRefresh(false))
	if err != nil {
		return fmt.Errorf("reading CDI specs: %w", err)
	}
	if _, err := cache.InjectDevices(s, devices...); err != nil {
		return fmt.Errorf("injecting %s: %w", strings.Join(devices, ", "), err)
	}
	return nil
}

// Bundle is an OCI bundle in the box. Only one container of a bundle can run at a time.
type Bundle struct {
	Dir  string
	m    *Machine
	spec *specs.Spec
}

// Bundle creates a bundle of an image. Its root file system is an overlay mount in the box.
func (m *Machine) Bundle(ctx context.Context, image images.Root, s *specs.Spec) (*Bundle, error) {
	dir, err := m.makeBundle("upper", "work", "rootfs")
	if err != nil {
		return nil, err
	}
	data, err := json.Marshal(s)
	if err != nil {
		return nil, fmt.Errorf("encoding an OCI spec: %w", err)
	}
	// The spec is world-readable, as with containerd: hooks in a user namespace run as an unprivileged user.
	if err := os.WriteFile(m.Path(path.Join(dir, "config.json")), data, 0o644); err != nil {
		return nil, fmt.Errorf("writing an OCI spec: %w", err)
	}
	options := fmt.Sprintf("lowerdir=%s,upperdir=%[2]s/upper,workdir=%[2]s/work", path.Join(unpacked, string(image)), dir)
	if _, err := m.Output(ctx, "mount", "-t", "overlay", "-o", options, "overlay", path.Join(dir, "rootfs")); err != nil {
		return nil, err
	}
	return &Bundle{Dir: dir, m: m, spec: s}, nil
}

// makeBundle creates the directory of a bundle, with subdirectories, and returns its path in the box.
func (m *Machine) makeBundle(subdirectories ...string) (string, error) {
	dir := path.Join(bundles, strings.ToLower(rand.Text()[:10]))
	for _, name := range append(subdirectories, ".") {
		if err := os.MkdirAll(m.Path(path.Join(dir, name)), 0o755); err != nil {
			return "", fmt.Errorf("creating a bundle: %w", err)
		}
	}
	return dir, nil
}

// Path returns the path on this machine of a file in the bundle's root file system.
func (b *Bundle) Path(name string) string { return b.m.Path(path.Join(b.Dir, "rootfs", name)) }

// Remove unmounts and deletes the bundle.
func (b *Bundle) Remove(ctx context.Context) error {
	if _, err := b.m.Output(ctx, "umount", path.Join(b.Dir, "rootfs")); err != nil {
		return err
	}
	if err := os.RemoveAll(b.m.Path(b.Dir)); err != nil {
		return fmt.Errorf("removing a bundle: %w", err)
	}
	return nil
}

// Container is a running container.
type Container struct {
	ID      string
	bundle  *Bundle
	runtime Runtime
}

// Run starts a container of the bundle.
func (b *Bundle) Run(ctx context.Context, runtime Runtime) (*Container, error) {
	c := &Container{ID: path.Base(b.Dir), bundle: b, runtime: runtime}
	cmd := b.m.Command(ctx, string(runtime), "run", "--detach", "--bundle", b.Dir, c.ID)
	// Standard error is a file: the container inherits it, so a pipe would stay open after the runtime exits.
	stderr, err := os.Create(b.m.Path(path.Join(b.Dir, "stderr")))
	if err != nil {
		return nil, fmt.Errorf("starting a container: %w", err)
	}
	defer stderr.Close()
	cmd.Stderr = stderr
	if err := cmd.Run(); err != nil {
		text, _ := os.ReadFile(stderr.Name())
		return nil, fmt.Errorf("starting a container with %s: %w\n%s", runtime, err, text)
	}
	return c, nil
}

// Exec runs a command in the container, as the container's user, and returns its standard output.
func (c *Container) Exec(ctx context.Context, command ...string) (string, error) {
	user := c.bundle.spec.Process.User // crun exec ignores the user in the spec
	args := []string{"exec", "--user", fmt.Sprintf("%d:%d", user.UID, user.GID), c.ID}
	return c.bundle.m.Output(ctx, string(c.runtime), append(args, command...)...)
}

// Remove kills and deletes the container, but not its bundle.
func (c *Container) Remove(ctx context.Context) error {
	_, err := c.bundle.m.Output(ctx, string(c.runtime), "delete", "--force", c.ID)
	return err
}
