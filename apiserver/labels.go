package apiserver

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
)

const nodesPath = "/api/v1/nodes"

// fieldManager is whose the labels are, for server-side apply.
const fieldManager = "gpucdi"

// labelled is a Node as far as its labels go.
type labelled struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	Metadata   struct {
		Name   string            `json:"name"`
		Labels map[string]string `json:"labels,omitempty"`
	} `json:"metadata"`
}

// ApplyLabels gives a node these labels. Those that it was given so before and
// that are not among them it loses; those of others it keeps.
func (c *Client) ApplyLabels(ctx context.Context, node string, labels map[string]string) error {
	n := labelled{APIVersion: "v1", Kind: "Node"}
	n.Metadata.Name, n.Metadata.Labels = node, labels
	// force: what says the same of the same GPUs may be somebody else's so far.
	query := url.Values{"fieldManager": {fieldManager}, "force": {"true"}}
	err := c.do(ctx, http.MethodPatch, "application/apply-patch+yaml", n, nodesPath+"/"+url.PathEscape(node)+"?"+query.Encode())
	if err != nil {
		return fmt.Errorf("labelling node %s: %w", node, err)
	}
	return nil
}

// WatchLabels calls changed with the labels that a node has, and whenever they
// may have changed, until the API server ends it, as it does now and then, or
// ctx ends.
func (c *Client) WatchLabels(ctx context.Context, node string, changed func(labels map[string]string)) error {
	query := url.Values{"watch": {"true"}, "fieldSelector": {"metadata.name=" + node}}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, c.host+nodesPath+"?"+query.Encode(), nil)
	if err != nil {
		return err
	}
	// A Node without its spec and status.
	request.Header.Set("Accept", "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1")
	response, err := c.roundTrip(request)
	if err != nil {
		return fmt.Errorf("watching node %s: %w", node, err)
	}
	defer response.Body.Close()
	for decoder := json.NewDecoder(response.Body); ; {
		var event struct {
			Type   string          `json:"type"`
			Object json.RawMessage `json:"object"`
		}
		switch err := decoder.Decode(&event); {
		case errors.Is(err, io.EOF) || ctx.Err() != nil:
			return nil
		case err != nil:
			return fmt.Errorf("watching node %s: %w", node, err)
		case event.Type == "ERROR":
			return fmt.Errorf("watching node %s: the API server says %s", node, event.Object)
		}
		var n labelled
		if err := json.Unmarshal(event.Object, &n); err != nil {
			return fmt.Errorf("watching node %s: %w", node, err)
		}
		changed(n.Metadata.Labels)
	}
}

// Labelled returns the names of the nodes that have a label.
func (c *Client) Labelled(ctx context.Context, label string) ([]string, error) {
	ctx, cancel := context.WithTimeout(ctx, requestWithin)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, c.host+nodesPath+"?"+url.Values{"labelSelector": {label}}.Encode(), nil)
	if err != nil {
		return nil, err
	}
	request.Header.Set("Accept", "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1")
	response, err := c.roundTrip(request)
	if err != nil {
		return nil, fmt.Errorf("listing the nodes with the label %s: %w", label, err)
	}
	defer response.Body.Close()
	var list struct {
		Items []labelled `json:"items"`
	}
	if err := json.NewDecoder(response.Body).Decode(&list); err != nil {
		return nil, fmt.Errorf("listing the nodes with the label %s: %w", label, err)
	}
	var names []string
	for _, n := range list.Items {
		names = append(names, n.Metadata.Name)
	}
	return names, nil
}
