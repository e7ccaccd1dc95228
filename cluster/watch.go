package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"golang.org/x/time/rate"
)

const (
	// The API server ends a watch in the next slot (see untilSlot), but not before minWatch. If the watch has not ended
	// watchGrace later, the client considers the connection dead.
	minWatch   = time.Minute
	watchGrace = 30 * time.Second

	// objectLimit bounds an object or a watch event, in bytes. The API server does not accept larger objects.
	objectLimit = 3 << 20

	// eventInterval and eventBurst limit the rate of watch events, since each change of the labels triggers a
	// reconcile. They also limit how often a Pool starts a watch or restores slices.
	eventInterval = time.Second
	eventBurst    = 10
)

// WatchLabels calls changed with the current labels of a node and then after each change. It returns nil when ctx ends,
// or when the API server ends the watch, which it does in a slot of the client.
func (c *Client) WatchLabels(ctx context.Context, node string, changed func(labels map[string]string)) error {
	timeout := c.untilSlot(minWatch).Round(time.Second)
	watching, cancel := context.WithTimeout(ctx, timeout+watchGrace)
	defer cancel()
	err := c.watch(watching, node, timeout, changed)
	switch {
	case ctx.Err() != nil || err == nil:
		return nil
	case watching.Err() != nil:
		return fmt.Errorf("watching node %s: connection dead: the API server did not end the watch within %s",
			node, timeout+watchGrace)
	}
	return fmt.Errorf("watching node %s: %w", node, err)
}

// Labels returns the labels of a node. It requires the same permissions as WatchLabels.
func (c *Client) Labels(ctx context.Context, node string) (labels map[string]string, err error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	received := false
	err = c.watch(ctx, node, requestTimeout, func(current map[string]string) {
		labels, received = current, true
		cancel()
	})
	switch {
	case received:
		return labels, nil
	case err == nil || ctx.Err() != nil:
		return nil, fmt.Errorf("reading labels of node %s: node not found, or no response within %s", node, requestTimeout)
	}
	return nil, fmt.Errorf("reading labels of node %s: %w", node, err)
}

func (c *Client) watch(ctx context.Context, node string, timeout time.Duration, changed func(labels map[string]string)) error {
	query := url.Values{
		"watch":          {"true"},
		"fieldSelector":  {"metadata.name=" + node},
		"timeoutSeconds": {strconv.Itoa(int(timeout.Seconds()))},
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, c.host+nodesPath+"?"+query.Encode(), nil)
	if err != nil {
		return err
	}
	request.Header.Set("Accept", metadataOnly)
	response, err := c.roundTrip(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	limit := rate.NewLimiter(rate.Every(eventInterval), eventBurst)
	return readEvents(response.Body, func(_ string, object json.RawMessage) (more bool, err error) {
		var n nodeMetadata
		if err := json.Unmarshal(object, &n); err != nil {
			return false, err
		}
		changed(n.Metadata.Labels)
		return limit.Wait(ctx) == nil, nil // on error the next watch delivers the labels
	})
}

// readEvents calls each with every watch event, until each returns false or an error, or the watch ends. It returns an
// error for an ERROR event.
func readEvents(body io.Reader, each func(event string, object json.RawMessage) (more bool, err error)) error {
	limited := &io.LimitedReader{R: body}
	decoder := json.NewDecoder(limited)
	for {
		limited.N = objectLimit
		var event struct {
			Type   string          `json:"type"`
			Object json.RawMessage `json:"object"`
		}
		err := decoder.Decode(&event)
		switch {
		case err != nil && limited.N == 0:
			return fmt.Errorf("watch event exceeds %d bytes", objectLimit)
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return err
		case event.Type == "ERROR":
			return fmt.Errorf("API server returned a watch error: %s", errorMessage(event.Object))
		}
		if more, err := each(event.Type, event.Object); !more || err != nil {
			return err
		}
	}
}
