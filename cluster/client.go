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
	"time"
)

// ErrNotInCluster means that this process runs in no pod with a service
// account, so that there is no API server that it could talk to.
var ErrNotInCluster = errors.New("not in a pod with a service account")

// serviceAccountDir is where the kubelet puts the credentials of a pod.
const serviceAccountDir = "/var/run/secrets/kubernetes.io/serviceaccount"

const (
	// requestWithin bounds a request and its response.
	requestWithin = 10 * time.Second
	// connectWithin, handshakeWithin and headerWithin bound the steps before the
	// body of a response, which is the only bound for a watch that never starts.
	connectWithin   = 10 * time.Second
	handshakeWithin = 10 * time.Second
	headerWithin    = 30 * time.Second // API Priority and Fairness may queue a request
)

const (
	// headerLimit bounds the header of a response, in bytes.
	headerLimit = 64 << 10
	// reasonLimit bounds the body of a refusal, and messageShown what is shown of it,
	// in bytes.
	reasonLimit  = 64 << 10
	messageShown = 1000
)

// Client sends requests to the API server with the credentials of a pod.
type Client struct {
	host        string // "https://10.96.0.1:443"
	credentials string // directory of the service account

	// dial connects to the API server; nil is the network. Tests replace it.
	dial func(ctx context.Context, network, address string) (net.Conn, error)
}

// New returns a client of the API server at host, "https://10.96.0.1:443", with the
// service account in a directory, as the kubelet mounts it.
func New(host, credentials string) *Client { return &Client{host: host, credentials: credentials} }

// InCluster returns the client of the pod that this process runs in.
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

// authority reads whom the API server's certificate must be from.
func (c *Client) authority() (*x509.CertPool, error) {
	pem, err := os.ReadFile(filepath.Join(c.credentials, "ca.crt"))
	if err != nil {
		return nil, fmt.Errorf("reading the cluster's authority: %w", err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("reading the cluster's authority: no certificate is in %s", filepath.Join(c.credentials, "ca.crt"))
	}
	return pool, nil
}

// roundTrip sends a request over a connection of its own, and returns the response
// if its status is a success. The credentials are read each time, since the kubelet
// renews them; requests are rare. Redirects are not followed: the API server sends
// none for these paths, and they would carry the token elsewhere.
func (c *Client) roundTrip(request *http.Request) (*http.Response, error) {
	token, err := os.ReadFile(filepath.Join(c.credentials, "token"))
	if err != nil {
		return nil, fmt.Errorf("reading the service account's token: %w", err)
	}
	pool, err := c.authority()
	if err != nil {
		return nil, err
	}
	request.Header.Set("Authorization", "Bearer "+strings.TrimSpace(string(token)))
	client := http.Client{
		Transport:     c.transport(pool),
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	response, err := client.Do(request)
	if err != nil {
		return nil, err
	}
	code := response.StatusCode
	if code < 300 {
		return response, nil
	}
	defer response.Body.Close()
	body, _ := io.ReadAll(io.LimitReader(response.Body, reasonLimit)) // shown as far as it was read
	if code == http.StatusTooManyRequests || code >= 500 {
		return nil, fmt.Errorf("the API server answers %d: %s", code, reason(body))
	}
	return nil, &refusedError{code, reason(body)}
}

// transport has a deadline for each step until the body of a response; the body has
// that of the request's context.
func (c *Client) transport(pool *x509.CertPool) *http.Transport {
	dial := c.dial
	if dial == nil {
		dial = (&net.Dialer{}).DialContext // with keep-alive probes, which notice a dead peer
	}
	return &http.Transport{
		Proxy: http.ProxyFromEnvironment,
		DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
			ctx, cancel := context.WithTimeout(ctx, connectWithin)
			defer cancel()
			return dial(ctx, network, address)
		},
		TLSClientConfig:        &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12},
		TLSHandshakeTimeout:    handshakeWithin,
		ResponseHeaderTimeout:  headerWithin,
		MaxResponseHeaderBytes: headerLimit,
		DisableKeepAlives:      true,
	}
}

// reason is the message of a Status object, or else the text as it is, cut to what
// can be shown.
func reason(status []byte) string {
	var object struct {
		Message string `json:"message"`
	}
	text := string(status)
	if json.Unmarshal(status, &object) == nil && object.Message != "" {
		text = object.Message
	}
	return strings.ToValidUTF8(text[:min(len(text), messageShown)], "")
}

// refusedError is a response that no retry will change.
type refusedError struct {
	code   int
	reason string
}

// Refused reports whether err is a refusal, so that a retry is of no use until
// somebody has changed the permissions.
func Refused(err error) bool {
	var refused *refusedError
	return errors.As(err, &refused)
}

func (e *refusedError) Error() string {
	return fmt.Sprintf("the API server answers %d: %s", e.code, e.reason)
}

// do sends an object as JSON. path is everything after the host.
func (c *Client) do(ctx context.Context, method, contentType string, object any, path string) error {
	ctx, cancel := context.WithTimeout(ctx, requestWithin)
	defer cancel()
	body, err := json.Marshal(object)
	if err != nil {
		return fmt.Errorf("writing it as JSON: %w", err)
	}
	request, err := http.NewRequestWithContext(ctx, method, c.host+path, bytes.NewReader(body))
	if err != nil {
		return err
	}
	request.Header.Set("Content-Type", contentType)
	response, err := c.roundTrip(request)
	if err != nil {
		return err
	}
	return response.Body.Close()
}
