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
	// responseLimit bounds the status and the metrics, in bytes each. The IDs of a resource with the maximum number of
	// replicas take 1 MB.
	responseLimit = 8 << 20
	// headerLimit bounds the header of a response, in bytes.
	headerLimit = 8 << 10
	// errorBodyLimit bounds the part of a response that an error quotes, in bytes.
	errorBodyLimit = 200
)

// Fetch requests the status of the agent that listens at address, "host:port".
func Fetch(ctx context.Context, address string) (Node, error) {
	data, err := get(ctx, address, "status", "/status")
	if err != nil {
		return Node{}, err
	}
	var n Node
	if err := json.Unmarshal(data, &n); err != nil {
		return Node{}, readError("status", address, err)
	}
	return n, nil
}

// FetchMetrics requests the metrics of the agent that listens at address, "host:port", in the text format.
func FetchMetrics(ctx context.Context, address string) ([]byte, error) {
	return get(ctx, address, "metrics", "/metrics")
}

// get requests a path. The address may belong to another program, so the response is bounded and quoted in errors, and
// redirects are not followed. what names the response in errors.
func get(ctx context.Context, address, what, path string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+address+path, nil)
	if err != nil {
		return nil, fmt.Errorf("requesting the %s of the agent at %q: %w", what, address, err)
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
		return nil, fmt.Errorf("requesting the %s of the agent at %s: %w; start gpucdi serve, or set --address to its --listen address", what, address, err)
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		body, _ := io.ReadAll(io.LimitReader(response.Body, errorBodyLimit)) // a partial body is quoted, too
		return nil, fmt.Errorf("requesting the %s of the agent at %s: unexpected response %d %q; check --address",
			what, address, response.StatusCode, strings.TrimSpace(string(body)))
	}
	data, err := io.ReadAll(io.LimitReader(response.Body, responseLimit+1))
	if err == nil && len(data) > responseLimit {
		err = fmt.Errorf("the response exceeds %d bytes", responseLimit)
	}
	if err != nil {
		return nil, readError(what, address, err)
	}
	return data, nil
}

func readError(what, address string, err error) error {
	return fmt.Errorf("reading the %s of the agent at %s: %w; check --address", what, address, err)
}
