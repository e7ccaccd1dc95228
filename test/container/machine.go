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

// SpecFile is where Generate puts its CDI spec in the box.
const SpecFile = "/etc/cdi/nvidia.yaml"

// Where things are in the box.
const (
	programs = "/opt/programs"
	unpacked = "/var/lib/images"
	bundles  = "/var/lib/bundles"
)

//go:embed src
var sources embed.FS

// Config says what machine to start.
type Config struct {
	// Dir is the state directory, as box.Config has it.
	Dir     string
	Profile simdriver.Profile
	// DriverRoot is where the driver is installed, "/" when empty. Any other place has the
	// machine's /dev, /proc and /sys in it, as a driver container has.
	DriverRoot string
	// Tools are commands of the box besides runc.
	Tools []tools.Tool
	// Images are root file systems that containers can have besides Debian 12's.
	Images []images.Root
}

// Machine is a machine with a GPU driver that can run containers.
type Machine struct {
	*box.Box
	Driver *simdriver.Driver
}

// Start makes a machine, and installs the Debian packages that this takes. The context ends the
// starting, not the machine.
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
	if err := m.furnish(ctx, cfg); err != nil {
		return nil, errors.Join(err, m.Close())
	}
	return m, nil
}

// furnish puts into the box what containers need.
func (m *Machine) furnish(ctx context.Context, cfg Config) error {
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

// ImageDir is where an image of Config.Images is in the box. It can be Config.DriverRoot: then
// it is a host of its own.
func ImageDir(image images.Root) string { return path.Join(unpacked, string(image)) }

// unpack puts an image into the box, with the probe as one of its programs.
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
			return fmt.Errorf("making the driver root: %w", err)
		}
		if _, err := m.Output(ctx, "mount", "--rbind", dir, at); err != nil {
			return fmt.Errorf("giving the driver root its %s: %w", dir, err)
		}
	}
	return nil
}

// Generate lets the shipped program write the CDI spec of the machine to SpecFile.
func (m *Machine) Generate(ctx context.Context, flags ...string) error {
	_, err := m.Output(ctx, "gpucdi", append([]string{"generate", "--output", SpecFile}, flags...)...)
	return err
}

// Output runs a command in the box and returns what it printed.
func (m *Machine) Output(ctx context.Context, name string, args ...string) (string, error) {
	return output(m.Command(ctx, name, args...))
}

// Compile makes a program, or with the right flags a library, of one file in src.
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

// output runs a command and returns what it printed, or what it said about its failure.
func output(cmd *exec.Cmd) (string, error) {
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return string(out), fmt.Errorf("%s: %w\n%s", strings.Join(cmd.Args, " "), err, strings.TrimSpace(stderr.String()))
	}
	return string(out), nil
}
