package main

import (
	"fmt"
	"io"
	"net"
	"os"
	"time"
)

const (
	maxConnections = 256
	dialTimeout    = 10 * time.Second
)

// accept accepts connections on standard input, a listening socket of the machine, and forwards each to a TCP address
// in the box. The socket remains in the network namespace of the machine, in which it was created.
func accept(address string) error {
	if err := dieWithParent(); err != nil {
		return err
	}
	listener, err := net.FileListener(os.Stdin)
	if err != nil {
		return fmt.Errorf("opening the listening socket on standard input: %w", err)
	}
	slots := make(chan struct{}, maxConnections)
	for {
		slots <- struct{}{}
		conn, err := listener.Accept()
		if err != nil {
			return fmt.Errorf("accepting a connection to %s: %w", address, err)
		}
		go func() { // ends with its connection; the process ends with the box
			defer func() { <-slots }()
			if err := forward(conn, address); err != nil {
				fmt.Fprintln(os.Stderr, "boxinit:", err)
			}
		}()
	}
}

// forward copies between a connection and a new one to address until both directions have ended.
func forward(conn net.Conn, address string) error {
	defer conn.Close()
	target, err := net.DialTimeout("tcp", address, dialTimeout)
	if err != nil {
		return fmt.Errorf("forwarding a connection: %w", err)
	}
	defer target.Close()
	done := make(chan struct{})
	go func() {
		defer close(done)
		copyHalf(target, conn)
	}()
	copyHalf(conn, target)
	<-done
	return nil
}

// copyHalf copies one direction and forwards its end. If a connection fails, both directions end.
func copyHalf(to, from net.Conn) {
	_, err := io.Copy(to, from)
	if half, ok := to.(*net.TCPConn); ok && err == nil {
		_ = half.CloseWrite() // fails if the peer has closed the connection
		return
	}
	to.Close()
	from.Close()
}
