package cluster

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"time"
)

// follow lists objects and calls listed with all of them, then watches them and calls changed for each change. It
// returns nil when the API server ends the watch, which it does after duration, or when ctx ends after the list.
func follow[T any](ctx context.Context, c *Client, path string, query url.Values, duration time.Duration, listed func([]T), changed func(object T, deleted bool)) error {
	var all []T
	version, err := list(ctx, c.reuse, c.host+path, query, "application/json", func(object T) error {
		all = append(all, object)
		return nil
	})
	if err != nil {
		return fmt.Errorf("listing: %w", err)
	}
	listed(all)
	watching, cancel := context.WithTimeout(ctx, duration+watchGrace)
	defer cancel()
	query.Del("limit")
	query.Del("continue")
	query.Set("watch", "true")
	query.Set("resourceVersion", version)
	query.Set("timeoutSeconds", strconv.Itoa(int(duration.Seconds())))
	request, err := http.NewRequestWithContext(watching, http.MethodGet, c.host+path+"?"+query.Encode(), nil)
	if err != nil {
		return err
	}
	response, err := c.reuse(request)
	if err == nil {
		defer response.Body.Close()
		err = readEvents(response.Body, func(event string, object json.RawMessage) (more bool, err error) {
			var decoded T
			if err := json.Unmarshal(object, &decoded); err != nil {
				return false, err
			}
			changed(decoded, event == "DELETED")
			return ctx.Err() == nil, nil
		})
	}
	switch {
	case ctx.Err() != nil || err == nil:
		return nil
	case watching.Err() != nil:
		return fmt.Errorf("watching: connection dead: the API server did not end the watch within %s", duration+watchGrace)
	}
	return fmt.Errorf("watching: %w", err)
}
