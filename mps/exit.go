package mps

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpucdi/gpucdi/internal/sockets"
)

// exitPoll is the interval between attempts to find the process of the daemon.
const exitPoll = time.Second

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
