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
	// replyLimit bounds a status, in bytes. A resource whose devices are shared as often
	// as the kubelet takes has 1 MB of them.
	replyLimit = 8 << 20
	// headerLimit bounds the header of a request or a reply, in bytes.
	headerLimit = 8 << 10
	// errorShown is how much of an error's body is shown, in bytes.
	errorShown = 200
)

// Fetch asks the agent that listens at address, "host:port". Somebody else may listen
// there: the reply is bounded, redirects are not followed, and the text of an error is
// quoted.
func Fetch(ctx context.Context, address string) (Node, error) {
	ctx, cancel := context.WithTimeout(ctx, requestWithin)
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
		return Node{}, fmt.Errorf("no agent answers at %s: is gpucdi serve running on this node, and does its --listen fit --address? (%w)", address, err)
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		body, _ := io.ReadAll(io.LimitReader(response.Body, errorShown)) // shown as far as it was read
		return Node{}, fmt.Errorf("requesting the status of the agent at %s: it answers %d %q; is it gpucdi?",
			address, response.StatusCode, strings.TrimSpace(string(body)))
	}
	n, err := decode(response.Body)
	if err != nil {
		return Node{}, fmt.Errorf("reading the status of the agent at %s: %w; is it gpucdi?", address, err)
	}
	return n, nil
}

func decode(reply io.Reader) (n Node, err error) {
	data, err := io.ReadAll(io.LimitReader(reply, replyLimit+1))
	switch {
	case err != nil:
		return Node{}, err
	case len(data) > replyLimit:
		return Node{}, fmt.Errorf("the reply exceeds %d bytes", replyLimit)
	}
	return n, json.Unmarshal(data, &n)
}
