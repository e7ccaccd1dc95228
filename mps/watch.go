package mps

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpucdi/gpucdi/internal/sockets"
)

const (
	// exitPoll is the interval between attempts to find the process of the daemon.
	exitPoll = time.Second
	// listTimeout bounds the command that lists the servers.
	listTimeout = 10 * time.Second
)

// Watch sends to changed, which must have a buffer of one, when the daemon or a server starts or ends, also if it is
// killed, until ctx ends.
func (c *Control) Watch(ctx context.Context, changed chan<- struct{}, log *slog.Logger) {
	relevant := func(name string) bool { return name == socketName || isName(name) && name != logDir }
	events := make(chan struct{}, 1)
	var watches sync.WaitGroup
	defer watches.Wait()
	watches.Go(func() { c.watchExit(ctx, events) })
	watches.Go(func() { sockets.Watcher{Dir: c.Dir, Relevant: relevant, Changed: events, Log: log}.Run(ctx) })
	watched := map[int]bool{} // PIDs of servers
	for {
		select {
		case <-ctx.Done():
			return
		case <-events:
		}
		sockets.Notify(changed)
		pids, err := c.serverPIDs(ctx)
		if err != nil { // the next event repeats it
			continue
		}
		for pid := range pids {
			if !watched[pid] {
				watches.Go(func() {
					_ = awaitProcess(ctx, pid) // on an error it may also have exited
					sockets.Notify(events)
				})
			}
		}
		watched = pids
	}
}

// serverPIDs returns the PIDs of the servers, except of those that have died.
func (c *Control) serverPIDs(ctx context.Context) (map[int]bool, error) {
	ctx, cancel := context.WithTimeout(ctx, listTimeout)
	defer cancel()
	rows, err := c.list(ctx, "server")
	if err != nil {
		return nil, err
	}
	pids := map[int]bool{}
	for _, row := range rows {
		if len(row) > pidColumn {
			if pid, err := strconv.Atoi(row[pidColumn]); err == nil && pid > 0 {
				pids[pid] = true
			}
		}
	}
	return pids, nil
}

// watchExit sends to changed when the process of the daemon has exited, until ctx ends. A daemon that is killed leaves its
// socket behind, so that the directory does not change.
func (c *Control) watchExit(ctx context.Context, changed chan<- struct{}) {
	for found := true; ctx.Err() == nil; {
		err := awaitExit(ctx, filepath.Join(c.Dir, socketName))
		if err == nil || found { // it may also have exited before it was found again
			sockets.Notify(changed)
		}
		found = err == nil
		select {
		case <-ctx.Done():
		case <-time.After(exitPoll):
		}
	}
}

// awaitExit waits until the process that listens on a socket has exited, or ctx ends. The error is the reason why it cannot
// wait.
func awaitExit(ctx context.Context, socket string) error {
	pid, err := listener(ctx, socket)
	if err != nil {
		return err
	}
	return awaitProcess(ctx, pid)
}

// awaitProcess waits until a process has exited, or ctx ends. The error is the reason why it cannot wait.
func awaitProcess(ctx context.Context, pid int) error {
	fd, err := unix.PidfdOpen(pid, unix.PIDFD_NONBLOCK)
	if err != nil {
		return fmt.Errorf("opening process %d: %w", pid, err)
	}
	process := os.NewFile(uintptr(fd), "pidfd")
	defer process.Close()
	stop := context.AfterFunc(ctx, func() { _ = process.SetReadDeadline(time.Now()) })
	defer stop()
	conn, err := process.SyscallConn()
	if err != nil {
		return err
	}
	return conn.Read(func(fd uintptr) (exited bool) {
		poll := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
		n, err := unix.Poll(poll, 0)
		return n > 0 || err != nil && err != unix.EINTR
	})
}

// listener returns the PID of the process that listens on a socket.
func listener(ctx context.Context, socket string) (pid int, err error) {
	dialer := net.Dialer{Timeout: exitPoll}
	connected, err := dialer.DialContext(ctx, "unix", socket)
	if err != nil {
		return 0, err
	}
	defer connected.Close()
	conn, err := connected.(*net.UnixConn).SyscallConn()
	if err != nil {
		return 0, err
	}
	var peer *unix.Ucred
	var errPeer error
	if err := conn.Control(func(fd uintptr) { peer, errPeer = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) }); err != nil {
		return 0, err
	}
	if errPeer != nil {
		return 0, fmt.Errorf("finding the process that listens on %s: %w", socket, errPeer)
	}
	return int(peer.Pid), nil // 0 in another PID namespace; opening it fails
}
