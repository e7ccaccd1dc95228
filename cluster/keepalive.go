package cluster

import (
	"bytes"
	"net/http"
	"sync"
	"time"
)

const (
	// idleTimeout is the time for which an unused connection is kept, so that a burst of pods does not require a TLS
	// handshake for each claim. It is shorter than the 90 s after which the API server closes an idle connection.
	idleTimeout = 80 * time.Second
	// maxIdle and maxConnections bound the number of connections.
	maxIdle        = 2
	maxConnections = 16
)

// keptTransport is a transport that keeps connections, for one CA.
type keptTransport struct {
	mu        sync.Mutex
	ca        []byte
	transport *http.Transport
}

// reuse sends a request over a keep-alive connection if there is one. A pod waits, for example while its claim is read,
// so the time for a TLS handshake matters. Requests that no pod waits for use roundTrip, which keeps no connection open.
func (c *Client) reuse(request *http.Request) (*http.Response, error) {
	transport, err := c.keepAlive()
	if err != nil {
		return nil, err
	}
	return c.exchange(request, transport)
}

// keepAlive returns the kept transport. It is replaced when the CA certificate is rotated.
func (c *Client) keepAlive() (*http.Transport, error) {
	pem, err := c.readCA()
	if err != nil {
		return nil, err
	}
	c.kept.mu.Lock()
	defer c.kept.mu.Unlock()
	if c.kept.transport != nil && bytes.Equal(pem, c.kept.ca) {
		return c.kept.transport, nil
	}
	pool, err := c.parseCA(pem)
	if err != nil {
		return nil, err
	}
	if c.kept.transport != nil {
		c.kept.transport.CloseIdleConnections()
	}
	transport := c.transport(pool)
	transport.IdleConnTimeout = idleTimeout
	transport.MaxIdleConns = maxIdle
	transport.MaxIdleConnsPerHost = maxIdle
	transport.MaxConnsPerHost = maxConnections
	c.kept.ca, c.kept.transport = pem, transport
	return transport, nil
}

// CloseIdle closes the connections that no request uses.
func (c *Client) CloseIdle() {
	c.kept.mu.Lock()
	defer c.kept.mu.Unlock()
	if c.kept.transport != nil {
		c.kept.transport.CloseIdleConnections()
	}
}
