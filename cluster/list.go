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
	// nodesPerPage is the number of nodes in one response, and pageLimit bounds its size, in bytes. A node usually
	// takes half a dozen KiB, mostly managed fields.
	nodesPerPage = 500
	pageLimit    = 32 << 20
	// maxPages bounds the list to 100,000 nodes, several times the maximum size of a cluster.
	maxPages = 200
)

// maxRefused is the number of refused requests after which RemoveLabels stops.
const maxRefused = 10

// RemoveLabels removes all labels that ApplyLabels has applied, from all nodes with the given label. It continues after
// up to maxRefused refusals and stops at any other error. It can be called again to resume.
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
	next := ""
	for range maxPages {
		page, err := c.page(ctx, label, next)
		if err != nil {
			return nil, err
		}
		for _, n := range page.Items {
			names = append(names, n.Metadata.Name)
		}
		if next = page.Metadata.Continue; next == "" {
			return names, nil
		}
	}
	return nil, fmt.Errorf("list exceeds %d pages of %d nodes", maxPages, nodesPerPage)
}

// nodePage is one page of a list of nodes.
type nodePage struct {
	Metadata struct {
		Continue string `json:"continue"` // token for the next page; empty on the last one
	} `json:"metadata"`
	Items []nodeMetadata `json:"items"`
}

// page requests the page for a continue token; the first page if it is empty.
func (c *Client) page(ctx context.Context, label, next string) (page nodePage, err error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	query := url.Values{"labelSelector": {label}, "limit": {strconv.Itoa(nodesPerPage)}}
	if next != "" {
		query.Set("continue", next)
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, c.host+nodesPath+"?"+query.Encode(), nil)
	if err != nil {
		return page, err
	}
	request.Header.Set("Accept", "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1")
	response, err := c.roundTrip(request)
	if err != nil {
		return page, err
	}
	defer response.Body.Close()
	limited := &io.LimitedReader{R: response.Body, N: pageLimit}
	if err := json.NewDecoder(limited).Decode(&page); err != nil {
		if limited.N == 0 {
			return page, fmt.Errorf("response exceeds %d bytes", pageLimit)
		}
		return page, err
	}
	return page, nil
}
