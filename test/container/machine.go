package container

import (
	"context"
	"embed"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path"
	"strings"

	"github.com/gpucdi/gpucdi/test/box"
	"github.com/gpucdi/gpucdi/test/node/images"
	"github.com/gpucdi/gpucdi/test/node/tools"
	"github.com/gpucdi/gpucdi/test/product"
	"github.com/gpucdi/gpucdi/test/simdriver"
)

// SpecFile is the path in the box of the CDI spec that Generate writes.
const SpecFile = "/etc/cdi/nvidia.yaml"

// Directories in the box.
const (
	programs = "/opt/programs"
	unpacked = "/var/lib/images"
	bundles  = "/var/lib/bundles"
)

//go:embed src
var sources embed.FS

// Config configures a machine.
type Config struct {
	// Dir is the state directory; see box.Config.
	Dir string
	// Profile has the GPUs of the simulated driver.
	Profile simdriver.Profile
	// DriverRoot is the driver root in the box. Default: /. In any other root, /dev, /proc and /sys are mounted, as in
	// the root of a driver container.
	DriverRoot string
	// Tools are installed in the box in addition to runc.
	Tools []tools.Tool
	// Images are unpacked in the box in addition to Debian 12, as root file systems for containers.
	Images []images.Root
}

// Machine is a box with a simulated driver that can run containers.
type Machine struct {
	*box.Box
	Driver *simdriver.Driver
}

// Start starts a machine. It installs the required Debian packages on the host. ctx bounds the start, not the machine.
func Start(ctx context.Context, cfg Config) (*Machine, error) {
	if err := tools.InstallPackages(ctx, "crun", "musl-tools"); err != nil {
		return nil, err
	}
	binds := map[string]string{}
	for _, tool := range append(cfg.Tools, tools.Runc) {
		dir, err := tools.Build(ctx, tool)
		if err != nil {
			return nil, err
		}
		binds[dir] = path.Join(programs, string(tool))
	}
	b, err := box.Start(ctx, box.Config{Dir: cfg.Dir, Simulated: true, Binds: binds})
	if err != nil {
		return nil, err
	}
	m := &Machine{Box: b}
	if err := m.provision(ctx, cfg); err != nil {
		return nil, errors.Join(err, m.Close())
	}
	return m, nil
}

// provision installs the programs, the images and the driver in the box.
func (m *Machine) provision(ctx context.Context, cfg Config) error {
	if _, err := m.Output(ctx, "sh", "-c", "ln -sf "+programs+"/*/* /usr/local/bin/"); err != nil {
		return err
	}
	for _, image := range append(cfg.Images, images.Debian12) {
		if err := m.unpack(ctx, image); err != nil {
			return fmt.Errorf("unpacking the image %s: %w", image, err)
		}
	}
	root := path.Join("/", cfg.DriverRoot)
	if err := m.prepareDriverRoot(ctx, root); err != nil {
		return err
	}
	driver, err := simdriver.Install(m.Path(root), cfg.Profile)
	if err != nil {
		return err
	}
	m.Driver = driver
	_, err = product.Build(ctx, m.Path("/usr/local/bin"))
	return err
}

// ImageDir returns the directory in the box that contains an unpacked image. If Config.DriverRoot is the same
// directory, it can serve as the root of a second host.
func ImageDir(image images.Root) string { return path.Join(unpacked, string(image)) }

// unpack unpacks an image in the box and adds the probe to its programs.
func (m *Machine) unpack(ctx context.Context, image images.Root) error {
	archive, err := image.Tar(ctx)
	if err != nil {
		return err
	}
	dir := m.Path(ImageDir(image))
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	if _, err := output(exec.CommandContext(ctx, "tar", "--extract", "--file", archive, "--directory", dir)); err != nil {
		return err
	}
	compiler := "cc"
	if image == images.Musl {
		compiler = "musl-gcc"
	}
	return Compile(ctx, compiler, "probe.c", path.Join(dir, "usr/local/bin/probe"))
}

func (m *Machine) prepareDriverRoot(ctx context.Context, root string) error {
	if root == "/" {
		return nil
	}
	for _, dir := range []string{"/dev", "/proc", "/sys"} {
		at := path.Join(root, dir)
		if err := os.MkdirAll(m.Path(at), 0o755); err != nil {
			return fmt.Errorf("creating the driver root: %w", err)
		}
		if _, err := m.Output(ctx, "mount", "--rbind", dir, at); err != nil {
			return fmt.Errorf("mounting %s in the driver root: %w", dir, err)
		}
	}
	return nil
}

// Generate writes the machine's CDI spec to SpecFile, with the shipped gpucdi.
func (m *Machine) Generate(ctx context.Context, flags ...string) error {
	_, err := m.Output(ctx, "gpucdi", append([]string{"generate", "--output", SpecFile}, flags...)...)
	return err
}

// Output runs a command in the box and returns its standard output.
func (m *Machine) Output(ctx context.Context, name string, args ...string) (string, error) {
	return output(m.Command(ctx, name, args...))
}

// Compile compiles a file in src to a program or, with flags such as -shared, to a library.
func Compile(ctx context.Context, compiler, source, file string, flags ...string) error {
	text, err := sources.Open("src/" + source)
	if err != nil {
		return err
	}
	defer text.Close()
	cc := exec.CommandContext(ctx, compiler, append(flags, "-Wall", "-Wextra", "-Werror", "-x", "c", "-o", file, "-")...)
	cc.Stdin = text
	_, err = output(cc)
	return err
}

// output runs a command and returns its standard output. The error includes standard error.
func output(cmd *exec.Cmd) (string, error) {
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return string(out), fmt.Errorf("%s: %w\n%s", strings.Join(cmd.Args, " "), err, strings.TrimSpace(stderr.String()))
	}
	return string(out), nil
}
