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
	// watchFor is how long the API server keeps a watch open, and watchGrace how much
	// longer the client waits for that: a watch that is still open then has no peer.
	watchFor   = 5 * time.Minute
	watchGrace = 30 * time.Second

	// objectLimit bounds an event, in bytes: the API server accepts no larger object.
	objectLimit = 3 << 20

	// eventInterval is the time between two events once eventBurst have come at once.
	// The labels of a node change now and then; each change is a reconcile.
	eventInterval = time.Second
	eventBurst    = 10
)

// WatchLabels calls changed with the labels of a node, first as they are and then
// after each change, until the API server ends the watch, as it does every few
// minutes, or ctx ends.
func (c *Client) WatchLabels(ctx context.Context, node string, changed func(labels map[string]string)) error {
	watching, cancel := context.WithTimeout(ctx, watchFor+watchGrace)
	defer cancel()
	err := c.watch(watching, node, changed)
	switch {
	case ctx.Err() != nil || err == nil:
		return nil
	case watching.Err() != nil:
		return fmt.Errorf("watching node %s: the API server has not ended the watch after %s; the connection is dead", node, watchFor+watchGrace)
	}
	return fmt.Errorf("watching node %s: %w", node, err)
}

// Labels returns the labels of a node. It requires no more permissions than
// WatchLabels.
func (c *Client) Labels(ctx context.Context, node string) (labels map[string]string, err error) {
	ctx, enough := context.WithTimeout(ctx, requestWithin)
	defer enough()
	received := false
	err = c.watch(ctx, node, func(now map[string]string) {
		labels, received = now, true
		enough()
	})
	switch {
	case received:
		return labels, nil
	case err == nil || ctx.Err() != nil:
		return nil, fmt.Errorf("reading the labels of node %s: the API server reports no node of that name", node)
	}
	return nil, fmt.Errorf("reading the labels of node %s: %w", node, err)
}

func (c *Client) watch(ctx context.Context, node string, changed func(labels map[string]string)) error {
	query := url.Values{
		"watch":          {"true"},
		"fieldSelector":  {"metadata.name=" + node},
		"timeoutSeconds": {strconv.Itoa(int(watchFor.Seconds()))},
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, c.host+nodesPath+"?"+query.Encode(), nil)
	if err != nil {
		return err
	}
	// A Node without its spec and status.
	request.Header.Set("Accept", "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1")
	response, err := c.roundTrip(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	limit := rate.NewLimiter(rate.Every(eventInterval), eventBurst)
	return readEvents(response.Body, func(labels map[string]string) (more bool) {
		changed(labels)
		return limit.Wait(ctx) == nil // else the next event is that of the next watch
	})
}

// readEvents calls changed for each event of a watch, until that wants no more or the
// watch ends.
func readEvents(body io.Reader, changed func(labels map[string]string) (more bool)) error {
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
			return fmt.Errorf("an event exceeds %d bytes", objectLimit)
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return err
		case event.Type == "ERROR":
			return fmt.Errorf("the API server reports: %s", reason(event.Object))
		}
		var n labelled
		if err := json.Unmarshal(event.Object, &n); err != nil {
			return err
		}
		if !changed(n.Metadata.Labels) {
			return nil
		}
	}
}
