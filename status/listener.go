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
	// maxConnections bounds the connections, and socketBuffer what the kernel keeps for
	// each and direction, in bytes; it doubles the number. With that and what net/http
	// needs for one, all of them take less than 16 MiB, of the 128 MiB that the chart
	// grants. The kubelet and Prometheus use a few.
	maxConnections = 128
	socketBuffer   = 16 << 10
	// requestLimit bounds what is read of a connection, in bytes: the header of one
	// request, which has no body.
	requestLimit = 8 << 10
	// lingerFor bounds the wait for the peer to receive the end of a response.
	lingerFor = 2 * time.Second
)

// listener accepts every connection, and closes the oldest one when there are more than
// maxConnections. The port is open to whoever reaches it: with a limit alone, connections
// that do nothing would keep probes and scrapes out. Those are answered in a moment, long
// before enough others have come to replace them.
//
// net/http takes a moment to see that a connection is closed. Accept waits for it when
// there are as many of those as open ones.
type listener struct {
	*net.TCPListener
	serving chan struct{} // filled by each connection until net/http has closed it
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
		return nil, fmt.Errorf("listening at %s: %T is no TCP listener", address, l)
	}
	return &listener{TCPListener: tcp, serving: make(chan struct{}, 2*maxConnections), closed: make(chan struct{})}, nil
}

// boundBuffers sets the buffers of a socket, which the connections that it accepts
// inherit.
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
	c := &connection{TCPConn: tcp, of: l, unread: requestLimit}
	l.mu.Lock()
	defer l.mu.Unlock()
	c.at = l.open.PushBack(c)
	if l.open.Len() > maxConnections {
		l.abort(l.open.Front())
	}
	return c, nil
}

// Close implements net.Listener. It closes the connections too, and is called once.
func (l *listener) Close() error {
	close(l.closed)
	l.mu.Lock()
	defer l.mu.Unlock()
	for l.open.Len() > 0 {
		l.abort(l.open.Front())
	}
	return l.TCPListener.Close()
}

// abort closes a connection and drops what the kernel still has for its peer. l.mu is
// held.
func (l *listener) abort(at *list.Element) {
	if c, is := l.open.Remove(at).(*connection); is {
		_ = c.SetLinger(0)
		_ = c.TCPConn.Close()
	}
}

// connection is one of a listener's, for one request.
type connection struct {
	*net.TCPConn
	of     *listener
	at     *list.Element
	unread int // bytes that may still be read
	served sync.Once
}

// Read implements net.Conn.
func (c *connection) Read(into []byte) (int, error) {
	if c.unread == 0 {
		return 0, io.EOF
	}
	n, err := c.TCPConn.Read(into[:min(len(into), c.unread)])
	c.unread -= n
	return n, err
}

// Close implements net.Conn. Until the peer has received everything, or lingerFor is
// over, the connection counts as open: the kernel has the rest of the response in
// memory, however slowly the peer reads.
func (c *connection) Close() error {
	if err := c.CloseWrite(); err == nil {
		_ = c.SetReadDeadline(time.Now().Add(lingerFor))
		for scrap := make([]byte, 512); err == nil; {
			_, err = c.TCPConn.Read(scrap)
		}
	}
	c.of.mu.Lock()
	defer c.of.mu.Unlock()
	c.of.abort(c.at)
	c.served.Do(func() { <-c.of.serving })
	return nil
}
