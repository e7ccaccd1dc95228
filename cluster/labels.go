package cluster

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
)

const nodesPath = "/api/v1/nodes"

// fieldManager is the field manager of the labels in server-side apply.
const fieldManager = "gpucdi"

// nodeMetadata is a Node with only its name and labels.
type nodeMetadata struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	Metadata   struct {
		Name   string            `json:"name"`
		Labels map[string]string `json:"labels,omitempty"`
	} `json:"metadata"`
}

// ApplyLabels applies labels to a node by server-side apply. It removes labels that an earlier call applied
// and this one does not, and keeps those of other field managers.
func (c *Client) ApplyLabels(ctx context.Context, node string, labels map[string]string) error {
	n := nodeMetadata{APIVersion: "v1", Kind: "Node"}
	n.Metadata.Name, n.Metadata.Labels = node, labels
	// Force takes over labels of other tools, which describe the same GPUs.
	query := url.Values{"fieldManager": {fieldManager}, "force": {"true"}}
	path := nodesPath + "/" + url.PathEscape(node) + "?" + query.Encode()
	if err := c.do(ctx, http.MethodPatch, "application/apply-patch+yaml", n, path); err != nil {
		return fmt.Errorf("applying labels to node %s: %w", node, err)
	}
	return nil
}
