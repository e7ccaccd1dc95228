package cluster

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
)

const nodesPath = "/api/v1/nodes"

// fieldManager is the field manager of labels, ResourceSlices, ResourceClaimTemplates and Leases.
const fieldManager = "gpucdi"

// maxRefused is the number of refused requests after which RemoveLabels and RemoveMarks stop.
const maxRefused = 10

// nodeMetadata is a Node with only its name and labels.
type nodeMetadata struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	Metadata   struct {
		Name   string            `json:"name"`
		Labels map[string]string `json:"labels,omitempty"`
	} `json:"metadata"`
}

// ApplyLabels applies labels to a node by server-side apply. It removes labels that an earlier call applied and this
// one does not, and keeps all other labels.
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

// RemoveLabels removes all labels that ApplyLabels has applied, from all nodes with the given label. It stops after
// maxRefused refusals, or at the first other error. It can be called again to resume.
func (c *Client) RemoveLabels(ctx context.Context, label string) error {
	nodes, err := c.nodesWithLabel(ctx, label)
	if err != nil {
		return fmt.Errorf("listing nodes with label %s: %w", label, err)
	}
	return eachNode(nodes, func(node string) error { return c.ApplyLabels(ctx, node, nil) })
}

// eachNode calls change for each node. It stops after maxRefused refusals, or at the first other error.
func eachNode(nodes []string, change func(node string) error) error {
	var errs []error
	for i, node := range nodes {
		err := change(node)
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
