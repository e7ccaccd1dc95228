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

// The runtimes of a Machine: runc as it is built from its module, crun as Debian ships it.
const (
	Runc Runtime = "/usr/local/bin/runc"
	Crun Runtime = "/usr/bin/crun"
)

// Spec returns the OCI spec of a container that sleeps, with CDI devices of the spec that was
// generated. It is runc's own default with what containerd adds: CAP_MKNOD, and that any
// device node may be made, though not opened.
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
	s.Version = "1.0.2" // Debian 12's crun takes nothing newer
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

// inject applies CDI devices to a spec, as containerd does.
func (m *Machine) inject(s *specs.Spec, devices []string) error {
	if len(devices) == 0 {
		return nil
	}
	cache, err := cdi.NewCache(cdi.WithSpecDirs(m.Path(path.Dir(SpecFile))), cdi.WithAutoRefresh(false))
	if err != nil {
		return fmt.Errorf("reading the CDI specs: %w", err)
	}
	if _, err := cache.InjectDevices(s, devices...); err != nil {
		return fmt.Errorf("injecting %s: %w", strings.Join(devices, ", "), err)
	}
	return nil
}

// Bundle is a directory in the box with a spec and a root file system of its own, from which
// containers can be run, one at a time.
type Bundle struct {
	Dir  string
	m    *Machine
	spec *specs.Spec
}

// Bundle makes a bundle of an image. The machine's own mounts get the root file system of it.
func (m *Machine) Bundle(ctx context.Context, image images.Root, s *specs.Spec) (*Bundle, error) {
	dir, err := m.makeBundle("upper", "work", "rootfs")
	if err != nil {
		return nil, err
	}
	data, err := json.Marshal(s)
	if err != nil {
		return nil, fmt.Errorf("encoding an OCI spec: %w", err)
	}
	// Containerd lets everybody read it: hooks in a user namespace are nobody special.
	if err := os.WriteFile(m.Path(path.Join(dir, "config.json")), data, 0o644); err != nil {
		return nil, fmt.Errorf("writing an OCI spec: %w", err)
	}
	options := fmt.Sprintf("lowerdir=%s,upperdir=%[2]s/upper,workdir=%[2]s/work", path.Join(unpacked, string(image)), dir)
	if _, err := m.Output(ctx, "mount", "-t", "overlay", "-o", options, "overlay", path.Join(dir, "rootfs")); err != nil {
		return nil, err
	}
	return &Bundle{Dir: dir, m: m, spec: s}, nil
}

func (m *Machine) makeBundle(below ...string) (string, error) {
	dir := path.Join(bundles, strings.ToLower(rand.Text()[:10]))
	for _, name := range append(below, ".") {
		if err := os.MkdirAll(m.Path(path.Join(dir, name)), 0o755); err != nil {
			return "", fmt.Errorf("making a bundle: %w", err)
		}
	}
	return dir, nil
}

// Path is where this machine sees a file of the bundle's root file system.
func (b *Bundle) Path(name string) string { return b.m.Path(path.Join(b.Dir, "rootfs", name)) }

// Remove takes the bundle away.
func (b *Bundle) Remove(ctx context.Context) error {
	if _, err := b.m.Output(ctx, "umount", path.Join(b.Dir, "rootfs")); err != nil {
		return err
	}
	if err := os.RemoveAll(b.m.Path(b.Dir)); err != nil {
		return fmt.Errorf("removing a bundle: %w", err)
	}
	return nil
}

// Container is a container that runs.
type Container struct {
	ID      string
	bundle  *Bundle
	runtime Runtime
}

// Run starts a container of the bundle.
func (b *Bundle) Run(ctx context.Context, runtime Runtime) (*Container, error) {
	c := &Container{ID: path.Base(b.Dir), bundle: b, runtime: runtime}
	cmd := b.m.Command(ctx, string(runtime), "run", "--detach", "--bundle", b.Dir, c.ID)
	// The container keeps what the runtime has open: a pipe would not end with the runtime.
	said, err := os.Create(b.m.Path(path.Join(b.Dir, "stderr")))
	if err != nil {
		return nil, fmt.Errorf("starting a container: %w", err)
	}
	defer said.Close()
	cmd.Stderr = said
	if err := cmd.Run(); err != nil {
		text, _ := os.ReadFile(said.Name())
		return nil, fmt.Errorf("starting a container with %s: %w\n%s", runtime, err, text)
	}
	return c, nil
}

// Exec runs a command in the container, as the container's user, and returns what it printed.
func (c *Container) Exec(ctx context.Context, command ...string) (string, error) {
	user := c.bundle.spec.Process.User // crun does not take it from the spec
	args := []string{"exec", "--user", fmt.Sprintf("%d:%d", user.UID, user.GID), c.ID}
	return c.bundle.m.Output(ctx, string(c.runtime), append(args, command...)...)
}

// Remove kills the container and takes it away. Its bundle stays.
func (c *Container) Remove(ctx context.Context) error {
	_, err := c.bundle.m.Output(ctx, string(c.runtime), "delete", "--force", c.ID)
	return err
}
