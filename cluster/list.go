package cluster

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
)

const (
	// objectsPerPage is the maximum number of objects in one response, and pageLimit bounds its size, in bytes. A claim
	// or the metadata of a Node usually has about 6 KiB, mostly managed fields.
	objectsPerPage = 500
	pageLimit      = 32 << 20
	// maxPages bounds a list to 200,000 objects. Kubernetes documents a maximum of 5,000 nodes per cluster.
	maxPages = 400
)

// metadataOnly is the media type of an object without its spec and status.
const metadataOnly = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"

// page is one page of a list of objects.
type page[T any] struct {
	Metadata struct {
		Continue        string `json:"continue"` // token for the next page; empty on the last one
		ResourceVersion string `json:"resourceVersion"`
	} `json:"metadata"`
	Items []T `json:"items"`
}

// list requests a list in pages and calls each for every object. It returns the resource version of the list. A limit
// in query overrides objectsPerPage.
func list[T any](ctx context.Context, send sender, address string, query url.Values, accept string, each func(T) error) (string, error) {
	if !query.Has("limit") {
		query.Set("limit", strconv.Itoa(objectsPerPage))
	}
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
	return "", fmt.Errorf("list exceeds %d pages of %s objects", maxPages, query.Get("limit"))
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
