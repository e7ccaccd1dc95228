package mps

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpucdi/gpucdi/internal/host"
)

// Dir is the name of the daemon's pipe directory in the state directory of the agent.
const Dir = "mps"

const (
	// Directories and files in the pipe directory.
	logDir   = "log"
	lockName = "daemon.lock"

	dirMode  = 0o755 // programs of any user connect to the sockets
	fileMode = 0o600

	// restartDelay is the time between the end of the daemon and its restart.
	restartDelay = time.Second
	// logInterval is the time between checks of the logs, and logLimit their maximum size, in bytes.
	logInterval = time.Minute
	logLimit    = 16 << 20
	// stopTimeout bounds the time to stop the daemon.
	stopTimeout = 10 * time.Second
)

// Daemon runs the MPS control daemon of the driver.
type Daemon struct {
	Program Program
	Dir     string // pipe directory, the same path on the node and in this process
	Log     *slog.Logger
}

// Run runs the control daemon until ctx ends, and starts it again whenever it ends. All servers, namespaces and clients
// end with it. Only one Daemon runs for a pipe directory; others wait.
func (d *Daemon) Run(ctx context.Context) error {
	if err := os.MkdirAll(filepath.Join(d.Dir, logDir), dirMode); err != nil {
		return fmt.Errorf("creating the MPS directory: %w", err)
	}
	unlock, err := d.lock(ctx)
	if ctx.Err() != nil {
		return nil
	}
	if err != nil {
		return err
	}
	defer unlock()
	go d.limitLogs(ctx)
	for logged := ""; ctx.Err() == nil; {
		err := d.serve(ctx)
		if ctx.Err() != nil {
			return nil
		}
		if err.Error() != logged {
			logged = err.Error()
			d.Log.Error("MPS daemon ended, will restart", "err", err)
		}
		select {
		case <-ctx.Done():
		case <-time.After(restartDelay):
		}
	}
	return nil
}

// serve runs the daemon until it ends. It returns an error in any case.
func (d *Daemon) serve(ctx context.Context) error {
	root, program, err := d.Program.find()
	if err != nil {
		return err
	}
	if err := d.removeSocket(); err != nil {
		return err
	}
	var out limitedBuffer
	cmd := exec.CommandContext(ctx, program, "-f", "-p", "3", "-m")
	cmd.Dir = "/"
	cmd.Env = []string{pipeVariable + "=" + d.Dir, "CUDA_MPS_LOG_DIRECTORY=" + filepath.Join(d.Dir, logDir),
		"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}
	cmd.Stdout, cmd.Stderr = &out, &out
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if local := root.LocalPath("/"); local != "/" {
		// The servers load the driver's libraries with the loader and the libc of the driver root.
		cmd.SysProcAttr.Chroot = local
	}
	host.KillWithChildren(cmd)
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGTERM) }
	cmd.WaitDelay = stopTimeout
	d.Log.Info("MPS daemon starting", "program", program, "root", root.String(), "directory", d.Dir)
	err = exitError(cmd.Run())
	errSocket := d.removeSocket() // first, so that the agent prohibits programs on the GPUs while servers still have these
	if cmd.Process != nil {       // it was started
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) // servers that survive it
	}
	return errors.Join(fmt.Errorf("running %s: %w: %s", program, err, host.Printable(out.String(), messageLimit)), errSocket)
}

// removeSocket removes the socket that a killed daemon leaves behind. As long as the socket exists, Control treats the
// daemon as running.
func (d *Daemon) removeSocket() error {
	if err := os.Remove(filepath.Join(d.Dir, socketName)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("removing the socket of the previous MPS daemon: %w", err)
	}
	return nil
}

// exitError returns err, or another error if it is nil, since the daemon must not exit by itself.
func exitError(err error) error {
	if err == nil {
		return errors.New("it exited")
	}
	return err
}

// lock waits for the lock of the pipe directory. The kernel releases it when the process ends.
func (d *Daemon) lock(ctx context.Context) (unlock func(), err error) {
	name := filepath.Join(d.Dir, lockName)
	file, err := os.OpenFile(name, os.O_RDWR|os.O_CREATE, fileMode)
	if err != nil {
		return nil, fmt.Errorf("locking the MPS directory: %w", err)
	}
	for waiting := false; ; waiting = true {
		err := unix.Flock(int(file.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			return func() { _ = file.Close() }, nil
		}
		if !errors.Is(err, unix.EWOULDBLOCK) && !errors.Is(err, unix.EINTR) {
			return nil, errors.Join(fmt.Errorf("locking %s: %w", name, err), file.Close())
		}
		if !waiting {
			d.Log.Info("another gpucdi mps serves this node, waiting for it to exit", "path", name)
		}
		select {
		case <-ctx.Done():
			return nil, errors.Join(ctx.Err(), file.Close())
		case <-time.After(restartDelay):
		}
	}
}

// limitLogs empties logs that have become too large, until ctx ends. MPS appends to them without a limit.
func (d *Daemon) limitLogs(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-time.After(logInterval):
		}
		logs, _ := filepath.Glob(filepath.Join(d.Dir, logDir, "*.log"))
		ofServers, _ := filepath.Glob(filepath.Join(d.Dir, logDir, "*", "*.log"))
		for _, name := range append(logs, ofServers...) {
			if info, err := os.Stat(name); err == nil && info.Size() > logLimit {
				if err := os.Truncate(name, 0); err != nil {
					d.Log.Warn("MPS log not truncated", "err", err)
				}
			}
		}
	}
}
