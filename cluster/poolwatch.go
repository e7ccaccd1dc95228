package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"time"
)

const (
	// The API server ends a watch of slices in the next slot (see untilSlot), but not before minSliceWatch. After each
	// watch, a list verifies the slices. If the watch has not ended sliceWatchGrace later, the client considers the
	// connection dead.
	minSliceWatch   = 30 * time.Second
	sliceWatchGrace = 10 * time.Second
	// settleTime is the time for which events are collected after the first one. When a kubelet deletes all slices of its
	// node, each slice has an event.
	settleTime = 50 * time.Millisecond
)

// sliceEvent is a change of a slice.
type sliceEvent struct {
	slice
	deleted bool
}

// follow lists the slices, publishes the pool, and reacts to changes until the watch of the slices ends.
func (p *Pool) follow(ctx context.Context) error {
	version, err := p.list(ctx)
	if err != nil {
		return fmt.Errorf("listing ResourceSlices of node %s: %w%s", p.node, err, remedy(err))
	}
	watching, cancel := context.WithCancel(ctx)
	events, ended := make(chan sliceEvent), make(chan error, 1)
	go func() { ended <- p.watch(watching, version, events) }()
	joined, err := p.react(ctx, events, ended)
	cancel()
	if !joined {
		<-ended
	}
	return err
}

// react publishes the pool initially, after changes of its slices, and after each Want or Withdraw. joined reports
// whether the watch has ended.
func (p *Pool) react(ctx context.Context, events <-chan sliceEvent, ended <-chan error) (joined bool, err error) {
	settled := time.NewTimer(0)
	defer settled.Stop()
	settling := true
	for {
		select {
		case <-ctx.Done():
			return false, nil
		case err := <-ended:
			return true, err
		case e := <-events:
			if p.apply(e) && !settling {
				settled.Reset(settleTime)
				settling = true
			}
			continue
		case <-settled.C:
			settling = false
		case <-p.wake:
		}
		if err := p.publish(ctx); err != nil {
			return false, err
		}
	}
}

// apply records an event.
func (p *Pool) apply(e sliceEvent) (changed bool) {
	if e.deleted {
		changed = p.state.remove(e.slice)
	} else {
		changed = p.state.store(e.slice)
	}
	if changed {
		p.report()
	}
	return changed
}

// list replaces the recorded slices with the slices in the API server, and returns the resource version at which a
// watch continues. It requests the slices of all drivers, to find slices that gpucdi wrote under another driver name.
func (p *Pool) list(ctx context.Context) (version string, err error) {
	var all []slice
	query := url.Values{"fieldSelector": {"spec.nodeName=" + p.node}}
	version, err = list(ctx, p.client.reuse, p.client.host+slicesPath, query, "application/json", func(s slice) error {
		if isOwnSlice(s.Name) || s.spec.Driver == p.driver {
			all = append(all, s)
		}
		return nil
	})
	if err != nil {
		return "", err
	}
	p.state.replace(all)
	p.report()
	return version, nil
}

// watch sends changes of the driver's slices since a resource version to events. It returns nil when the API server
// ends the watch, or when ctx ends.
func (p *Pool) watch(ctx context.Context, version string, events chan<- sliceEvent) error {
	timeout := p.client.untilSlot(minSliceWatch).Round(time.Second)
	watching, cancel := context.WithTimeout(ctx, timeout+sliceWatchGrace)
	defer cancel()
	query := url.Values{
		"watch":           {"true"},
		"fieldSelector":   {"spec.nodeName=" + p.node + ",spec.driver=" + p.driver},
		"resourceVersion": {version},
		"timeoutSeconds":  {strconv.Itoa(int(timeout.Seconds()))},
	}
	err := p.client.watchSlices(watching, query, events)
	switch {
	case ctx.Err() != nil || err == nil:
		return nil
	case watching.Err() != nil:
		err = fmt.Errorf("connection dead: the API server did not end the watch within %s", timeout+sliceWatchGrace)
	}
	return fmt.Errorf("watching ResourceSlices of node %s: %w%s", p.node, err, remedy(err))
}

func (c *Client) watchSlices(ctx context.Context, query url.Values, events chan<- sliceEvent) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, c.host+slicesPath+"?"+query.Encode(), nil)
	if err != nil {
		return err
	}
	response, err := c.reuse(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	return readEvents(response.Body, func(event string, object json.RawMessage) (more bool, err error) {
		e := sliceEvent{deleted: event == "DELETED"}
		if err := json.Unmarshal(object, &e.slice); err != nil {
			return false, err
		}
		select {
		case events <- e:
			return true, nil
		case <-ctx.Done():
			return false, nil
		}
	})
}

// remedy returns the remedy for an error response, as the end of an error message; "" if none is known.
func remedy(err error) string {
	switch code := statusCode(err); {
	case code == http.StatusForbidden:
		return "; allow the service account to list, watch, create, update and delete resourceslices, and to get its node"
	case code == http.StatusNotFound && !errors.Is(err, ErrNotFound): // the API is missing, not an object
		return "; DRA requires Kubernetes 1.34 or later"
	}
	return ""
}
