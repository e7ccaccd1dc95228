package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"time"
)

// ConditionType and TaintKey identify the condition and the taint of gpucdi on a Node.
const (
	ConditionType = "NvidiaGPUHealthy"
	TaintKey      = "gpucdi.dev/gpu-fault"
)

const (
	// markAttempts bounds the attempts of Mark. An attempt is repeated if the Node has changed since it was read, by
	// another client or by the patch of the condition.
	markAttempts = 5
	// nodesPerPage bounds a page of complete Nodes, which take up to 100 KiB each.
	nodesPerPage = "100"
	// conditionMessageLimit bounds the message of a condition, in bytes.
	conditionMessageLimit = 1024
)

// Marks are the condition and the taint of a Node that tools for node remediation act on.
type Marks struct {
	Condition *Condition // nil: none
	Taint     *NodeTaint // nil: none
}

// Condition is the content of the condition ConditionType.
type Condition struct {
	Healthy bool
	Reason  string // CamelCase
	Message string // truncated to 1024 bytes
}

// NodeTaint is the content of the taint TaintKey.
type NodeTaint struct {
	Value  string
	Effect string // "NoSchedule"
}

// markedNode is a Node with the fields that Marks concern. Taints of others are kept verbatim.
type markedNode struct {
	Metadata struct {
		Name            string `json:"name"`
		ResourceVersion string `json:"resourceVersion"`
	} `json:"metadata"`
	Spec struct {
		Taints []json.RawMessage `json:"taints"`
	} `json:"spec"`
	Status struct {
		Conditions []nodeCondition `json:"conditions"`
	} `json:"status"`
}

type nodeCondition struct {
	Type       string    `json:"type"`
	Status     string    `json:"status"`
	Reason     string    `json:"reason"`
	Message    string    `json:"message"`
	Heartbeat  time.Time `json:"lastHeartbeatTime,omitzero"`
	Transition time.Time `json:"lastTransitionTime,omitzero"`
}

type nodeTaint struct {
	Key    string `json:"key"`
	Value  string `json:"value,omitempty"`
	Effect string `json:"effect"`
}

// Mark sets the condition and the taint of a node to those of want, or removes them. It keeps all others, including
// those added while it runs, and writes only what differs.
func (c *Client) Mark(ctx context.Context, node string, want Marks) error {
	var err error
	for range markAttempts {
		var n markedNode
		const accept = "application/json"
		if err = get(ctx, c.roundTrip, c.host+nodesPath+"/"+url.PathEscape(node), accept, objectLimit, &n); err != nil {
			return fmt.Errorf("reading node %s: %w", node, err)
		}
		n.Metadata.Name = node
		if err = c.mark(ctx, n, want); statusCode(err) != http.StatusConflict {
			return err
		}
	}
	return err
}

// mark writes what differs on a node as just read. The taint is first, since its patch requires the version that was
// read, which the patch of the condition changes.
func (c *Client) mark(ctx context.Context, n markedNode, want Marks) error {
	return errors.Join(c.setTaint(ctx, n, want.Taint), c.setCondition(ctx, n, want.Condition))
}

// setCondition patches the condition. A strategic merge patch merges conditions by type, so no other is affected.
func (c *Client) setCondition(ctx context.Context, n markedNode, want *Condition) error {
	i := slices.IndexFunc(n.Status.Conditions, func(c nodeCondition) bool { return c.Type == ConditionType })
	var patch any
	switch {
	case want == nil && i < 0:
		return nil
	case want == nil:
		patch = map[string]string{"$patch": "delete", "type": ConditionType}
	default:
		now := time.Now().UTC().Truncate(time.Second) // the API's precision
		next := nodeCondition{Type: ConditionType, Status: "False", Reason: want.Reason,
			Message: truncate(want.Message, conditionMessageLimit), Heartbeat: now, Transition: now}
		if want.Healthy {
			next.Status = "True"
		}
		if i >= 0 {
			current := n.Status.Conditions[i]
			if current.Status == next.Status {
				next.Transition = current.Transition
			}
			if next.Heartbeat = current.Heartbeat; next == current {
				return nil
			}
			next.Heartbeat = now
		}
		patch = next
	}
	body := map[string]any{"status": map[string]any{"conditions": []any{patch}}}
	path := nodesPath + "/" + url.PathEscape(n.Metadata.Name) + "/status"
	if err := c.do(ctx, http.MethodPatch, "application/strategic-merge-patch+json", body, path); err != nil {
		return fmt.Errorf("patching condition %s of node %s: %w", ConditionType, n.Metadata.Name, err)
	}
	return nil
}

// setTaint patches the taint. The API server replaces the list as a whole, so the patch contains the resource version
// that the list was read with, and fails with a conflict if the Node has changed since.
func (c *Client) setTaint(ctx context.Context, n markedNode, want *NodeTaint) error {
	taints, changed, err := withTaint(n.Spec.Taints, want)
	if err != nil || !changed {
		return err
	}
	body := map[string]any{
		"metadata": map[string]string{"resourceVersion": n.Metadata.ResourceVersion},
		"spec":     map[string]any{"taints": taints},
	}
	path := nodesPath + "/" + url.PathEscape(n.Metadata.Name)
	if err := c.do(ctx, http.MethodPatch, "application/merge-patch+json", body, path); err != nil {
		return fmt.Errorf("patching taint %s of node %s: %w", TaintKey, n.Metadata.Name, err)
	}
	return nil
}

// withTaint returns the taints of a node with want as the only one of its key, and whether they differ from current.
func withTaint(current []json.RawMessage, want *NodeTaint) (taints []json.RawMessage, changed bool, err error) {
	found := false
	taints = []json.RawMessage{}
	for _, raw := range current {
		var t nodeTaint
		if err := json.Unmarshal(raw, &t); err != nil {
			return nil, false, fmt.Errorf("reading taints: %w", err)
		}
		switch {
		case t.Key != TaintKey:
			taints = append(taints, raw)
		case want != nil && !found && t.Value == want.Value && t.Effect == want.Effect:
			found = true
			taints = append(taints, raw)
		default:
			changed = true
		}
	}
	if want == nil || found {
		return taints, changed, nil
	}
	raw, err := json.Marshal(nodeTaint{TaintKey, want.Value, want.Effect})
	return append(taints, raw), true, err
}

// RemoveMarks removes condition and taint from all nodes. It stops on errors as RemoveLabels does.
func (c *Client) RemoveMarks(ctx context.Context) error {
	var marked []string
	query := url.Values{"limit": {nodesPerPage}}
	_, err := list(ctx, c.roundTrip, c.host+nodesPath, query, "application/json", func(n markedNode) error {
		_, tainted, err := withTaint(n.Spec.Taints, nil)
		if tainted || slices.ContainsFunc(n.Status.Conditions, func(c nodeCondition) bool { return c.Type == ConditionType }) {
			marked = append(marked, n.Metadata.Name)
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("listing nodes: %w", err)
	}
	return eachNode(marked, func(node string) error { return c.Mark(ctx, node, Marks{}) })
}
