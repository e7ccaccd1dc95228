package apiserver

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

// requestWithin bounds a request.
const requestWithin = 10 * time.Second

// Client talks to the API server with the credentials of a pod.
type Client struct {
	host        string // "https://10.96.0.1:443"
	credentials string // the directory
}

// InCluster returns the client of the pod that this process runs in.
func InCluster() (*Client, error) {
	host, port := os.Getenv("KUBERNETES_SERVICE_HOST"), os.Getenv("KUBERNETES_SERVICE_PORT")
	if host == "" || port == "" {
		return nil, ErrNotInCluster
	}
	if _, err := os.Stat(filepath.Join(serviceAccountDir, "token")); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrNotInCluster, err)
	}
	return &Client{host: "https://" + net.JoinHostPort(host, port), credentials: serviceAccountDir}, nil
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

// roundTrip sends one request over a connection of its own, and returns the
// answer if it is a good one. The credentials are read for it, since the kubelet
// renews them; requests are rare.
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
		Transport: &http.Transport{
			Proxy:             http.ProxyFromEnvironment,
			TLSClientConfig:   &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12},
			DisableKeepAlives: true,
		},
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
	said, _ := io.ReadAll(io.LimitReader(response.Body, 1000)) // only to be shown
	if code == http.StatusTooManyRequests || code >= 500 {
		return nil, fmt.Errorf("the API server answers %d: %s", code, said)
	}
	return nil, &refusedError{code, string(said)}
}

// refusedError is an answer that no second try will change.
type refusedError struct {
	code int
	said string
}

// Refused says whether the API server will not do what failed with err.
func Refused(err error) bool {
	var refused *refusedError
	return errors.As(err, &refused)
}

func (e *refusedError) Error() string {
	return fmt.Sprintf("the API server answers %d: %s", e.code, e.said)
}

// do sends an object as JSON. path is all that stands behind the host.
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
