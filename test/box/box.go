package box

import (
	"bufio"
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/gpucdi/gpucdi/test/box/internal/spec"
)

// Config says what box to make.
type Config struct {
	// Dir is the state directory: it must not exist or be empty, it must lie on a file system
	// that can be the upper layer of an overlay (not on an overlay itself), and it goes with
	// the box.
	Dir string
	// Hostname inside; "box" when empty.
	Hostname string
	// Simulated puts plain files where the kernel would refuse a simulated GPU driver: at
	// /proc/driver, /proc/devices and /sys/bus/pci/devices. It also leaves out the nodes of a
	// real driver, which the box otherwise has.
	Simulated bool
	// Keep lets the box outlive this process. Box.Keeper then is the process to end it with.
	Keep bool
	// Binds are directories of the machine that the box sees too: from there to here.
	Binds map[string]string
}

// Box is a running machine in namespaces. Its methods can be called concurrently.
type Box struct {
	dir    string
	spec   *spec.Spec
	keeper *exec.Cmd
	// Its closing tells the keeper to take the box away; nil when the box is kept.
	lifeline io.Closer
	stderr   *bytes.Buffer
}

// path is where commands are looked for inside a box.
const path = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// Start makes a box and returns when commands can run in it. The context ends the starting,
// not the box.
func Start(ctx context.Context, cfg Config) (*Box, error) {
	s, err := prepare(cfg)
	if err != nil {
		return nil, err
	}
	program := filepath.Join(s.Dir, "boxinit")
	build := exec.CommandContext(ctx, "go", "build", "-o", program, "github.com/gpucdi/gpucdi/test/box/boxinit")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		return nil, errors.Join(fmt.Errorf("building boxinit: %w\n%s", err, out), os.RemoveAll(s.Dir))
	}
	b := &Box{dir: s.Dir, stderr: new(bytes.Buffer), keeper: exec.Command(program, "keep", s.Dir)}
	if err := b.start(ctx, cfg.Keep); err != nil {
		return nil, fmt.Errorf("starting a box in %s: %w", s.Dir, err)
	}
	if b.spec, err = spec.Read(s.Dir); err != nil {
		return nil, errors.Join(err, b.Close())
	}
	return b, nil
}

func prepare(cfg Config) (*spec.Spec, error) {
	dir, err := filepath.Abs(cfg.Dir)
	if err != nil {
		return nil, fmt.Errorf("finding the state directory %s: %w", cfg.Dir, err)
	}
	if strings.ContainsAny(dir, ",:\\ \n") {
		return nil, fmt.Errorf("the state directory %q: overlays take no comma, colon, backslash or space in a path", dir)
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, fmt.Errorf("making the state directory: %w", err)
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, fmt.Errorf("reading the state directory: %w", err)
	}
	if len(entries) > 0 {
		return nil, fmt.Errorf("the state directory %s is not empty: name another, or remove what an earlier box left", dir)
	}
	s := &spec.Spec{
		ID: "gpucdi-" + strings.ToLower(rand.Text()[:10]), Dir: dir, Hostname: cfg.Hostname,
		Simulated: cfg.Simulated, Keep: cfg.Keep, Binds: cfg.Binds,
	}
	if s.Hostname == "" {
		s.Hostname = "box"
	}
	return s, s.Write()
}

// start starts the keeper and waits until it says that the box is up.
func (b *Box) start(ctx context.Context, kept bool) error {
	// A session of its own: an interrupt from the terminal is for the owner to act on.
	b.keeper.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	b.keeper.Stderr = b.stderr
	out, err := b.keeper.StdoutPipe()
	if err != nil {
		return err
	}
	if !kept {
		if b.lifeline, err = b.keeper.StdinPipe(); err != nil {
			return err
		}
	}
	if err := b.keeper.Start(); err != nil {
		return err
	}
	cancel := context.AfterFunc(ctx, func() { _ = b.keeper.Process.Signal(syscall.SIGTERM) })
	line, _ := bufio.NewReader(out).ReadString('\n')
	if cancel() && line == "ready\n" {
		return nil
	}
	err = b.keeper.Wait()
	return errors.Join(ctx.Err(), err, errors.New(strings.TrimSpace(b.stderr.String())))
}

// Open returns a kept box, from its state directory, that another process has started.
func Open(dir string) (*Box, error) {
	s, err := spec.Read(dir)
	if err != nil {
		return nil, err
	}
	return &Box{dir: s.Dir, spec: s}, nil
}

// Root is the box's root directory as this machine sees it.
func (b *Box) Root() string { return fmt.Sprintf("/proc/%d/root", b.spec.Init) }

// Path is where this machine sees the box's file name.
func (b *Box) Path(name string) string { return filepath.Join(b.Root(), name) }

// Dir is the state directory.
func (b *Box) Dir() string { return b.dir }

// Keeper is the process that takes the box away when it gets a SIGTERM.
func (b *Box) Keeper() int { return b.spec.Keeper }

// Command returns a command that will run in the box, found in its PATH, with an environment
// of the box's own to which the caller may add. When the context ends it is killed; what it
// has started itself lives on until the box ends, as on any machine. Signals sent to the
// command are passed on.
func (b *Box) Command(ctx context.Context, name string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, b.Enter()[0], append(append(b.Enter()[1:], name), args...)...)
	cmd.Env = []string{"PATH=" + path, "HOME=/root", "LANG=C.UTF-8", "TERM=" + os.Getenv("TERM")}
	return cmd
}

// Enter is the command line, to be followed by a command and its arguments, that runs it in
// the box. It works for as long as the box is up, from anywhere.
func (b *Box) Enter() []string { return []string{filepath.Join(b.dir, "boxinit"), "enter", b.dir} }

// Close ends everything in the box and removes it with its state directory. For a box that
// was opened it only asks for that.
func (b *Box) Close() error {
	if b.keeper == nil {
		if err := syscall.Kill(b.spec.Keeper, syscall.SIGTERM); err != nil {
			return fmt.Errorf("ending the box in %s: %w", b.dir, err)
		}
		return nil
	}
	var err error
	if b.lifeline != nil {
		err = b.lifeline.Close()
	} else {
		err = b.keeper.Process.Signal(syscall.SIGTERM)
	}
	if err := errors.Join(err, b.keeper.Wait()); err != nil {
		return fmt.Errorf("ending the box in %s: %w\n%s", b.dir, err, strings.TrimSpace(b.stderr.String()))
	}
	return nil
}
