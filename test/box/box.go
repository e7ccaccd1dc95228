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

// Config configures a box.
type Config struct {
	// Dir is the state directory, which is removed with the box. It must be empty or not
	// exist, and its file system must support the upper layer of an overlay.
	Dir string
	// Hostname is the host name in the box; empty: "box".
	Hostname string
	// Simulated mounts writable files for a simulated GPU driver at /proc/driver, /proc/devices
	// and /sys/bus/pci/devices. It also leaves out the device nodes of a real driver.
	Simulated bool
	// Keep lets the box outlive this process. A SIGTERM to Box.Keeper ends it.
	Keep bool
	// Binds are bind mounts: directory on the machine to directory in the box.
	Binds map[string]string
}

// Box is a running box. Its methods can be called concurrently.
type Box struct {
	dir    string
	spec   *spec.Spec
	keeper *exec.Cmd // nil for an opened box
	stdin  io.Closer // of the keeper, which ends the box at EOF; nil for a kept box
	stderr *bytes.Buffer
}

// path is the PATH of commands in a box.
const path = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// Start starts a box and returns when commands can run in it. ctx bounds the start, not the
// lifetime of the box.
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
		return nil, fmt.Errorf("state directory %q: paths of overlays must not contain comma, colon, backslash or space", dir)
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, fmt.Errorf("creating the state directory: %w", err)
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, fmt.Errorf("reading the state directory: %w", err)
	}
	if len(entries) > 0 {
		return nil, fmt.Errorf("state directory %s is not empty; choose another one, or remove it", dir)
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

// start starts the keeper and waits until the box is ready.
func (b *Box) start(ctx context.Context, kept bool) error {
	// In a session of its own, the keeper does not receive the terminal's SIGINT, which its owner handles.
	b.keeper.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	b.keeper.Stderr = b.stderr
	out, err := b.keeper.StdoutPipe()
	if err != nil {
		return err
	}
	if !kept {
		if b.stdin, err = b.keeper.StdinPipe(); err != nil {
			return err
		}
	}
	if err := b.keeper.Start(); err != nil {
		return err
	}
	stop := context.AfterFunc(ctx, func() { _ = b.keeper.Process.Signal(syscall.SIGTERM) })
	line, _ := bufio.NewReader(out).ReadString('\n')
	if stop() && line == "ready\n" {
		return nil
	}
	err = b.keeper.Wait()
	return errors.Join(ctx.Err(), err, errors.New(strings.TrimSpace(b.stderr.String())))
}

// Open returns a kept box that another process has started, by its state directory.
func Open(dir string) (*Box, error) {
	s, err := spec.Read(dir)
	if err != nil {
		return nil, err
	}
	return &Box{dir: s.Dir, spec: s}, nil
}

// Root returns the path of the box's root directory on this machine.
func (b *Box) Root() string { return fmt.Sprintf("/proc/%d/root", b.spec.Init) }

// Path returns the path on this machine of a file in the box.
func (b *Box) Path(name string) string { return filepath.Join(b.Root(), name) }

// Dir returns the state directory.
func (b *Box) Dir() string { return b.dir }

// Keeper returns the PID of the keeper, which removes the box on SIGTERM.
func (b *Box) Keeper() int { return b.spec.Keeper }

// Command returns a command that runs in the box, with a minimal environment that the caller
// may extend. name is resolved in the PATH of the box. Signals are forwarded to the command.
// When ctx ends, it is killed, but its children are not.
func (b *Box) Command(ctx context.Context, name string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, b.Enter()[0], append(append(b.Enter()[1:], name), args...)...)
	cmd.Env = []string{"PATH=" + path, "HOME=/root", "LANG=C.UTF-8", "TERM=" + os.Getenv("TERM")}
	return cmd
}

// Enter returns the command line prefix that runs a command and its arguments in the box.
func (b *Box) Enter() []string { return []string{filepath.Join(b.dir, "boxinit"), "enter", b.dir} }

// Close kills all processes in the box, and removes it with its state directory. For an opened
// box it does not wait until that is done.
func (b *Box) Close() error {
	if b.keeper == nil {
		if err := syscall.Kill(b.spec.Keeper, syscall.SIGTERM); err != nil {
			return fmt.Errorf("ending the box in %s: %w", b.dir, err)
		}
		return nil
	}
	var err error
	if b.stdin != nil {
		err = b.stdin.Close()
	} else {
		err = b.keeper.Process.Signal(syscall.SIGTERM)
	}
	if err := errors.Join(err, b.keeper.Wait()); err != nil {
		return fmt.Errorf("ending the box in %s: %w\n%s", b.dir, err, strings.TrimSpace(b.stderr.String()))
	}
	return nil
}
