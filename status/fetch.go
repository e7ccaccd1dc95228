package status

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
)

const (
	// responseLimit bounds a status, in bytes. A resource with as many replicas as the
	// kubelet accepts has 1 MB of device IDs.
	responseLimit = 8 << 20
	// headerLimit bounds the header of a response, in bytes.
	headerLimit = 8 << 10
	// errorBodyLimit bounds the part of a response that an error quotes, in bytes.
	errorBodyLimit = 200
)

// Fetch requests the status of the agent that listens at address, "host:port". The
// address may belong to another program, so the response is bounded and quoted in
// errors, and redirects are not followed.
func Fetch(ctx context.Context, address string) (Node, error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+address+"/status", nil)
	if err != nil {
		return Node{}, fmt.Errorf("requesting the status of the agent at %q: %w", address, err)
	}
	client := http.Client{
		Transport: &http.Transport{
			Proxy:                  http.ProxyFromEnvironment,
			MaxResponseHeaderBytes: headerLimit,
			DisableKeepAlives:      true,
			DisableCompression:     true,
		},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	response, err := client.Do(request)
	if err != nil {
		return Node{}, fmt.Errorf("requesting the status of the agent at %s: %w; start gpucdi serve, or set --address to its --listen address", address, err)
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		body, _ := io.ReadAll(io.LimitReader(response.Body, errorBodyLimit)) // a partial body is quoted, too
		return Node{}, fmt.Errorf("requesting the status of the agent at %s: unexpected response %d %q; check --address",
			address, response.StatusCode, strings.TrimSpace(string(body)))
	}
	n, err := decode(response.Body)
	if err != nil {
		return Node{}, fmt.Errorf("reading the status of the agent at %s: %w; check --address", address, err)
	}
	return n, nil
}

func decode(response io.Reader) (n Node, err error) {
	data, err := io.ReadAll(io.LimitReader(response, responseLimit+1))
	switch {
	case err != nil:
		return Node{}, err
	case len(data) > responseLimit:
		return Node{}, fmt.Errorf("the response exceeds %d bytes", responseLimit)
	}
	return n, json.Unmarshal(data, &n)
}
