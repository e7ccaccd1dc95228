package cluster

import (
	"context"
	"errors"
	"fmt"
	"net/url"
)

// NodeUID returns the UID of a node.
func (c *Client) NodeUID(ctx context.Context, node string) (string, error) {
	var n struct {
		Metadata struct {
			UID string `json:"uid"`
		} `json:"metadata"`
	}
	err := get(ctx, c.reuse, c.host+nodesPath+"/"+url.PathEscape(node), metadataOnly, objectLimit, &n)
	if err == nil && n.Metadata.UID == "" {
		err = errors.New("the response has no UID")
	}
	if err != nil {
		return "", fmt.Errorf("reading the UID of node %s: %w", node, err)
	}
	return n.Metadata.UID, nil
}
