package status

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
)

// Fetch asks the agent that listens at address, "host:port".
func Fetch(ctx context.Context, address string) (Node, error) {
	ctx, cancel := context.WithTimeout(ctx, requestWithin)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+address+"/status", nil)
	if err != nil {
		return Node{}, fmt.Errorf("asking the agent at %s: %w", address, err)
	}
	request.Close = true // there is but one question
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return Node{}, fmt.Errorf("no agent answers at %s: is gpucdi serve running on this node, and does its --listen fit --address? (%w)", address, err)
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		said, _ := io.ReadAll(io.LimitReader(response.Body, 200))
		return Node{}, fmt.Errorf("asking the agent at %s: it says %s %s", address, response.Status, strings.TrimSpace(string(said)))
	}
	var n Node
	if err := json.NewDecoder(response.Body).Decode(&n); err != nil {
		return Node{}, fmt.Errorf("reading what the agent at %s says: is it gpucdi? %w", address, err)
	}
	return n, nil
}
