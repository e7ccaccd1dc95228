package cluster

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"
)

// dialer detects a dead peer of an idle connection within 30 s. Its probes also prevent NAT from dropping the
// connection.
var dialer = net.Dialer{KeepAliveConfig: net.KeepAliveConfig{
	Enable: true, Idle: 15 * time.Second, Interval: 5 * time.Second, Count: 3,
}}

// ErrNotInCluster means that this process does not run in a pod with a service account, so it cannot access an API
// server.
var ErrNotInCluster = errors.New("not in a pod with a service account")

// serviceAccountDir is where the kubelet mounts the credentials of a pod.
const serviceAccountDir = "/var/run/secrets/kubernetes.io/serviceaccount"

const (
	// requestTimeout bounds a request and its response.
	requestTimeout = 10 * time.Second
	// connectTimeout, handshakeTimeout and headerTimeout bound the steps before the body of a response. They also apply
	// to watches, which have no requestTimeout.
	connectTimeout   = 10 * time.Second
	handshakeTimeout = 10 * time.Second
	headerTimeout    = 30 * time.Second // API Priority and Fairness may queue a request
)

const (
	// headerLimit bounds the headers of a response, in bytes.
	headerLimit = 64 << 10
	// errorBodyLimit bounds the body of an error response, in bytes.
	errorBodyLimit = 64 << 10
)

// Client is a client of the API server with the credentials of a pod. It is safe for concurrent use.
type Client struct {
	// Spread is the interval over which the agents of a cluster distribute requests that are not urgent: each agent has
	// one slot in it, at a random offset. 0: DefaultSpread. It must be set before the first request.
	Spread time.Duration

	host        string // "https://10.96.0.1:443"
	credentials string // directory of the service account

	// dial connects to the API server; nil uses the network. Tests replace it.
	dial func(ctx context.Context, network, address string) (net.Conn, error)

	kept keptTransport // of requests that a pod may wait for; see reuse

	slots struct { // see untilSlot
		once     sync.Once
		interval time.Duration
		first    time.Time
	}
}

// New returns a client of the API server at host, such as "https://10.96.0.1:443". credentials is the directory of a
// mounted service account.
func New(host, credentials string) *Client { return &Client{host: host, credentials: credentials} }

// InCluster returns a client with the credentials of the pod that this process runs in. The error wraps
// ErrNotInCluster if there are none.
func InCluster() (*Client, error) {
	host, port := os.Getenv("KUBERNETES_SERVICE_HOST"), os.Getenv("KUBERNETES_SERVICE_PORT")
	if host == "" || port == "" {
		return nil, ErrNotInCluster
	}
	if _, err := os.Stat(filepath.Join(serviceAccountDir, "token")); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrNotInCluster, err)
	}
	return New("https://"+net.JoinHostPort(host, port), serviceAccountDir), nil
}

// rootCAs parses the cluster's CA certificates.
func (c *Client) rootCAs() (*x509.CertPool, error) {
	pem, err := c.readCA()
	if err != nil {
		return nil, err
	}
	return c.parseCA(pem)
}

func (c *Client) readCA() ([]byte, error) {
	pem, err := os.ReadFile(filepath.Join(c.credentials, "ca.crt"))
	if err != nil {
		return nil, fmt.Errorf("reading the cluster CA: %w", err)
	}
	return pem, nil
}

func (c *Client) parseCA(pem []byte) (*x509.CertPool, error) {
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("reading the cluster CA: no certificate in %s", filepath.Join(c.credentials, "ca.crt"))
	}
	return pool, nil
}

// sender sends a request and returns the response if its status is 2xx.
type sender func(*http.Request) (*http.Response, error)

// roundTrip sends a request over a new connection. The credentials are read each time, since the kubelet rotates them
// and requests are rare.
func (c *Client) roundTrip(request *http.Request) (*http.Response, error) {
	pool, err := c.rootCAs()
	if err != nil {
		return nil, err
	}
	transport := c.transport(pool)
	transport.DisableKeepAlives = true
	return c.exchange(request, transport)
}

// exchange sends a request with the current token and returns the response if its status is 2xx. Redirects are not
// followed: the API server sends none for these paths, and following one could leak the token.
func (c *Client) exchange(request *http.Request, transport *http.Transport) (*http.Response, error) {
	token, err := os.ReadFile(filepath.Join(c.credentials, "token"))
	if err != nil {
		return nil, fmt.Errorf("reading the service account token: %w", err)
	}
	request.Header.Set("Authorization", "Bearer "+strings.TrimSpace(string(token)))
	client := http.Client{
		Transport:     transport,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	response, err := client.Do(request)
	if err != nil {
		return nil, err
	}
	if response.StatusCode < 300 {
		return response, nil
	}
	defer response.Body.Close()
	body, _ := io.ReadAll(io.LimitReader(response.Body, errorBodyLimit)) // best effort
	return nil, newResponseError(response.StatusCode, body)
}

// transport returns a transport with a timeout for each step before the body of a response. Reading the body is bounded
// by the request's context.
func (c *Client) transport(pool *x509.CertPool) *http.Transport {
	dial := c.dial
	if dial == nil {
		dial = dialer.DialContext
	}
	return &http.Transport{
		Proxy: http.ProxyFromEnvironment,
		DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
			ctx, cancel := context.WithTimeout(ctx, connectTimeout)
			defer cancel()
			return dial(ctx, network, address)
		},
		TLSClientConfig:        &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12},
		TLSHandshakeTimeout:    handshakeTimeout,
		ResponseHeaderTimeout:  headerTimeout,
		MaxResponseHeaderBytes: headerLimit,
	}
}

// do sends an object as JSON. path is the URL after the host, including the query.
func (c *Client) do(ctx context.Context, method, contentType string, object any, path string) error {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	request, err := c.newRequest(ctx, method, contentType, object, path)
	if err != nil {
		return err
	}
	// The response is not read, and a complete Node would list all images on it.
	request.Header.Set("Accept", metadataOnly)
	response, err := c.roundTrip(request)
	if err != nil {
		return err
	}
	return response.Body.Close()
}

// newRequest returns a request with an object as JSON.
func (c *Client) newRequest(ctx context.Context, method, contentType string, object any, path string) (*http.Request, error) {
	body, err := json.Marshal(object)
	if err != nil {
		return nil, fmt.Errorf("encoding the request: %w", err)
	}
	request, err := http.NewRequestWithContext(ctx, method, c.host+path, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	request.Header.Set("Content-Type", contentType)
	request.Header.Set("Accept", "application/json")
	return request, nil
}
