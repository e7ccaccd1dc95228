package cluster

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
)

const nodesPath = "/api/v1/nodes"

// fieldManager is whose the labels are, for server-side apply.
const fieldManager = "gpucdi"

// labelled is a Node with its name and labels only.
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
