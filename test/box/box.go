package box

import (
	"bufio"
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpucdi/gpucdi/test/box/internal/spec"
	"github.com/gpucdi/gpucdi/test/programs"
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
func Start(ctx context.Context, cfg Config) (_ *Box, err error) {
	s, err := prepare(cfg)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.RemoveAll(s.Dir))
		}
	}()
	if err := s.Write(); err != nil {
		return nil, err
	}
	if err := boxinit.Put(ctx, s.Dir); err != nil {
		return nil, err
	}
	b := &Box{dir: s.Dir, stderr: new(bytes.Buffer)}
	b.keeper = exec.Command(b.keeperCommand()[0], b.keeperCommand()[1:]...)
	if err := b.start(ctx, cfg.Keep); err != nil {
		return nil, fmt.Errorf("starting a box in %s: %w", s.Dir, err)
	}
	if b.spec, err = spec.Read(s.Dir); err != nil {
		return nil, errors.Join(err, b.Close())
	}
	return b, nil
}

// prepare creates the state directory, and returns the spec of the box.
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
	return s, nil
}

// start starts the keeper and waits until the box is ready.
func (b *Box) start(ctx context.Context, kept bool) error {
	// In a separate session, the keeper does not receive SIGINT from the terminal. The owner handles it.
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

// Open returns the kept box in the state directory dir, which another process may have started. It fails if the box has
// ended.
func Open(dir string) (*Box, error) {
	s, err := spec.Read(dir)
	if err != nil {
		return nil, err
	}
	b := &Box{dir: s.Dir, spec: s}
	// After a crash of the machine or the keeper, other processes may have the PIDs of the spec.
	command, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", s.Keeper))
	if err != nil || string(command) != strings.Join(b.keeperCommand(), "\x00")+"\x00" {
		return nil, fmt.Errorf("the box in %s has ended without being removed; remove the directory", dir)
	}
	return b, nil
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
	cmd := exec.CommandContext(ctx, boxinitPath(b.dir), append([]string{"enter", b.dir, name}, args...)...)
	cmd.Env = []string{"PATH=" + path, "HOME=/root", "LANG=C.UTF-8", "TERM=" + os.Getenv("TERM")}
	return cmd
}

// Forward returns a command that accepts connections on a listening socket of this machine, and forwards each to a TCP
// address in the box. The command ends with the box.
func (b *Box) Forward(ctx context.Context, listener *os.File, address string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, boxinitPath(b.dir), "forward", b.dir, address)
	cmd.Stdin = listener
	return cmd
}

// Dial connects to an address in the network namespace of the box. Unlike with Forward, no process copies the data.
// address must contain an IP address, because a name would be resolved in the namespace of this process.
func (b *Box) Dial(ctx context.Context, network, address string) (conn net.Conn, err error) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // without unlocking: the thread stays in the namespace and ends with the goroutine
		if err = b.joinNetwork(); err == nil {
			conn, err = new(net.Dialer).DialContext(ctx, network, address)
		}
	}()
	<-done
	return conn, err
}

// joinNetwork moves the calling thread to the network namespace of the box.
func (b *Box) joinNetwork() error {
	namespace, err := os.Open(fmt.Sprintf("/proc/%d/ns/net", b.spec.Init))
	if err != nil {
		return fmt.Errorf("opening the network namespace of the box, which may have ended: %w", err)
	}
	defer namespace.Close()
	if err := unix.Setns(int(namespace.Fd()), unix.CLONE_NEWNET); err != nil {
		return fmt.Errorf("joining the network namespace of the box: %w", err)
	}
	return nil
}

const boxinitName = "boxinit"

// boxinitPath returns the path of boxinit in the state directory dir.
func boxinitPath(dir string) string { return filepath.Join(dir, boxinitName) }

var boxinit = programs.New(func(ctx context.Context, dir string) error {
	build := exec.CommandContext(ctx, "go", "build", "-o", boxinitPath(dir), "github.com/gpucdi/gpucdi/test/box/boxinit")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		return fmt.Errorf("building boxinit: %w\n%s", err, out)
	}
	return nil
}, boxinitName)

// keeperCommand returns the command line of the keeper.
func (b *Box) keeperCommand() []string { return []string{boxinitPath(b.dir), "keep", b.dir} }

// removalTimeout is the time after which Close of a box from Open fails.
const removalTimeout = time.Minute

// Close kills all processes in the box, and removes it with its state directory.
func (b *Box) Close() error {
	if b.keeper == nil {
		return b.closeOpened()
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

// closeOpened ends the box through its keeper, which removes the state directory last.
func (b *Box) closeOpened() error {
	if err := syscall.Kill(b.spec.Keeper, syscall.SIGTERM); err != nil {
		return fmt.Errorf("ending the box in %s: %w", b.dir, err)
	}
	for deadline := time.Now().Add(removalTimeout); time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
		if _, err := os.Stat(b.dir); errors.Is(err, fs.ErrNotExist) {
			return nil
		}
	}
	return fmt.Errorf("ending the box in %s: the directory is not removed after %s; end the remaining processes of the box",
		b.dir, removalTimeout)
}
