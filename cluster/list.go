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
	// pageNodes is how many nodes are listed in one request, and pageLimit bounds its
	// response, in bytes: half a dozen KiB a node are usual, most of them managed fields.
	pageNodes = 500
	pageLimit = 32 << 20
	// maxPages bounds the list: 100,000 nodes are several times what a cluster can have.
	maxPages = 200
)

// maxRefused is how many nodes may be refused before RemoveLabels gives up.
const maxRefused = 10

// RemoveLabels removes what ApplyLabels has applied, from all nodes that have the
// label. One that is refused does not affect the others; an API server that fails ends
// it, and it can be run again.
func (c *Client) RemoveLabels(ctx context.Context, label string) error {
	nodes, err := c.labelled(ctx, label)
	if err != nil {
		return fmt.Errorf("listing the nodes with the label %s: %w", label, err)
	}
	var errs []error
	for i, node := range nodes {
		err := c.ApplyLabels(ctx, node, nil)
		if err == nil {
			continue
		}
		errs = append(errs, err)
		if !Refused(err) || len(errs) == maxRefused {
			errs = append(errs, fmt.Errorf("stopped with %d of %d nodes left; fix the first error and run it again", len(nodes)-i-1, len(nodes)))
			break
		}
	}
	return errors.Join(errs...)
}

// labelled returns the names of the nodes that have a label.
func (c *Client) labelled(ctx context.Context, label string) (names []string, err error) {
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
	return nil, fmt.Errorf("the list exceeds %d pages of %d nodes", maxPages, pageNodes)
}

// nodePage is a part of a list of nodes.
type nodePage struct {
	Metadata struct {
		Continue string `json:"continue"` // asks for the next part; empty: this is the last
	} `json:"metadata"`
	Items []labelled `json:"items"`
}

func (c *Client) page(ctx context.Context, label, next string) (page nodePage, err error) {
	ctx, cancel := context.WithTimeout(ctx, requestWithin)
	defer cancel()
	query := url.Values{"labelSelector": {label}, "limit": {strconv.Itoa(pageNodes)}}
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
			return page, fmt.Errorf("the response exceeds %d bytes", pageLimit)
		}
		return page, err
	}
	return page, nil
}
