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
)

const (
	// objectsPerPage is the number of objects in one response, and pageLimit bounds its size, in bytes. A node or a
	// claim usually takes half a dozen KiB, mostly managed fields.
	objectsPerPage = 500
	pageLimit      = 32 << 20
	// maxPages bounds a list to 200,000 objects. Kubernetes documents a maximum of 5,000 nodes per cluster.
	maxPages = 400
)

// maxRefused is the number of refused requests after which RemoveLabels stops.
const maxRefused = 10

// RemoveLabels removes all labels that ApplyLabels has applied, from all nodes with the given label. It stops after
// maxRefused refusals, or at the first other error. It can be called again to resume.
func (c *Client) RemoveLabels(ctx context.Context, label string) error {
	nodes, err := c.nodesWithLabel(ctx, label)
	if err != nil {
		return fmt.Errorf("listing nodes with label %s: %w", label, err)
	}
	var errs []error
	for i, node := range nodes {
		err := c.ApplyLabels(ctx, node, nil)
		if err == nil {
			continue
		}
		errs = append(errs, err)
		if !Refused(err) || len(errs) == maxRefused {
			errs = append(errs, fmt.Errorf("stopped with %d of %d nodes left; fix the first error and retry",
				len(nodes)-i-1, len(nodes)))
			break
		}
	}
	return errors.Join(errs...)
}

// nodesWithLabel returns the names of the nodes that have a label.
func (c *Client) nodesWithLabel(ctx context.Context, label string) (names []string, err error) {
	query := url.Values{"labelSelector": {label}}
	const accept = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"
	_, err = list(ctx, c.roundTrip, c.host+nodesPath, query, accept, func(n nodeMetadata) error {
		names = append(names, n.Metadata.Name)
		return nil
	})
	return names, err
}

// page is one page of a list of objects.
type page[T any] struct {
	Metadata struct {
		Continue        string `json:"continue"` // token for the next page; empty on the last one
		ResourceVersion string `json:"resourceVersion"`
	} `json:"metadata"`
	Items []T `json:"items"`
}

// list requests a list in pages and calls each for every object. It returns the resource version of the list.
func list[T any](ctx context.Context, send sender, address string, query url.Values, accept string, each func(T) error) (string, error) {
	query.Set("limit", strconv.Itoa(objectsPerPage))
	for range maxPages {
		var p page[T]
		if err := get(ctx, send, address+"?"+query.Encode(), accept, pageLimit, &p); err != nil {
			return "", err
		}
		for _, item := range p.Items {
			if err := each(item); err != nil {
				return "", err
			}
		}
		if p.Metadata.Continue == "" {
			return p.Metadata.ResourceVersion, nil
		}
		query.Set("continue", p.Metadata.Continue)
	}
	return "", fmt.Errorf("list exceeds %d pages of %d objects", maxPages, objectsPerPage)
}

// get requests an object and decodes it into object. limit bounds the size of the response, in bytes.
func get(ctx context.Context, send sender, address, accept string, limit int64, object any) error {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, address, nil)
	if err != nil {
		return err
	}
	request.Header.Set("Accept", accept)
	response, err := send(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	return decode(response.Body, limit, object)
}

// decode decodes a response of at most limit bytes. It reads all of it first, so that the connection can be reused and
// an endless response is not parsed.
func decode(body io.Reader, limit int64, object any) error {
	data, err := io.ReadAll(io.LimitReader(body, limit+1))
	switch {
	case err != nil:
		return err
	case int64(len(data)) > limit:
		return fmt.Errorf("response exceeds %d bytes", limit)
	}
	return json.Unmarshal(data, object)
}
