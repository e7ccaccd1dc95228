package status

import (
	"container/list"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// maxConnections bounds the open connections, and socketBuffer each of their socket buffers, in bytes; the kernel
	// doubles it. Including net/http, all connections take less than 16 MiB of the chart's memory limit of 128 MiB. The
	// kubelet and Prometheus use a few connections.
	maxConnections = 128
	socketBuffer   = 16 << 10
	// requestLimit bounds the bytes read from a connection: the header of one request, without a body.
	requestLimit = 8 << 10
	// lingerFor bounds the wait for the client to close the connection after a response.
	lingerFor = 2 * time.Second
)

// listener accepts every connection. Above maxConnections, a new one replaces the oldest. The port is unauthenticated:
// if it refused connections above the limit, idle clients could lock out probes and scrapes. Probes and scrapes
// complete long before newer connections replace theirs.
//
// net/http detects a closed connection with a delay. Accept blocks while 2*maxConnections connections, including closed
// ones, are being served.
type listener struct {
	*net.TCPListener
	serving chan struct{} // a slot for each connection until net/http has closed it
	closed  chan struct{}

	mu   sync.Mutex
	open list.List // of *connection, the oldest first
}

func listen(ctx context.Context, address string) (*listener, error) {
	config := net.ListenConfig{Control: boundBuffers}
	l, err := config.Listen(ctx, "tcp", address)
	if err != nil {
		return nil, err
	}
	tcp, is := l.(*net.TCPListener)
	if !is {
		return nil, fmt.Errorf("listening at %s: %T is not a TCP listener", address, l)
	}
	return &listener{TCPListener: tcp, serving: make(chan struct{}, 2*maxConnections), closed: make(chan struct{})}, nil
}

// boundBuffers sets the buffer sizes of a listening socket; accepted connections inherit them.
func boundBuffers(_, _ string, socket syscall.RawConn) (err error) {
	controlled := socket.Control(func(fd uintptr) {
		err = errors.Join(
			unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUF, socketBuffer),
			unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_SNDBUF, socketBuffer),
		)
	})
	return errors.Join(controlled, err)
}

// Accept implements net.Listener.
func (l *listener) Accept() (net.Conn, error) {
	select {
	case l.serving <- struct{}{}:
	case <-l.closed:
		return nil, net.ErrClosed
	}
	tcp, err := l.AcceptTCP()
	if err != nil {
		<-l.serving
		return nil, err
	}
	c := &connection{TCPConn: tcp, parent: l, quota: requestLimit}
	l.mu.Lock()
	defer l.mu.Unlock()
	c.at = l.open.PushBack(c)
	if l.open.Len() > maxConnections {
		l.abort(l.open.Front())
	}
	return c, nil
}

// Close implements net.Listener. It also closes all connections, and is called once.
func (l *listener) Close() error {
	close(l.closed)
	l.mu.Lock()
	defer l.mu.Unlock()
	for l.open.Len() > 0 {
		l.abort(l.open.Front())
	}
	return l.TCPListener.Close()
}

// abort closes a connection and discards its unsent data. l.mu must be held.
func (l *listener) abort(at *list.Element) {
	if c, is := l.open.Remove(at).(*connection); is {
		_ = c.SetLinger(0)
		_ = c.TCPConn.Close()
	}
}

// connection is an accepted connection, for one request.
type connection struct {
	*net.TCPConn
	parent *listener
	at     *list.Element // in parent.open
	quota  int           // bytes that may still be read
	served sync.Once
}

// Read implements net.Conn.
func (c *connection) Read(into []byte) (int, error) {
	if c.quota == 0 {
		return 0, io.EOF
	}
	n, err := c.TCPConn.Read(into[:min(len(into), c.quota)])
	c.quota -= n
	return n, err
}

// Close implements net.Conn. The connection counts as open until the client closes it or lingerFor has passed, because
// the kernel may still buffer the rest of the response.
func (c *connection) Close() error {
	if err := c.CloseWrite(); err == nil {
		_ = c.SetReadDeadline(time.Now().Add(lingerFor))
		for discard := make([]byte, 512); err == nil; {
			_, err = c.TCPConn.Read(discard)
		}
	}
	c.parent.mu.Lock()
	defer c.parent.mu.Unlock()
	c.parent.abort(c.at)
	c.served.Do(func() { <-c.parent.serving })
	return nil
}
