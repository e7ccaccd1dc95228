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
	// markAttempts bounds the attempts of Mark. An attempt is repeated if another client has changed the Node since it
	// was read.
	markAttempts = 5
	// nodesPerPage bounds a page of complete Nodes, which take up to 100 KiB each.
	nodesPerPage = "100"
	// conditionMessageLimit bounds the message of a condition, in bytes.
	conditionMessageLimit = 1024
)

// Marks are the condition and the taint of a Node for node remediation tools.
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

// markedNode is a Node with the fields that Mark changes. Taints of other clients are kept verbatim.
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

// Mark sets the condition and the taint of a node as in want, or removes them. It keeps all other conditions and
// taints, including ones added while it runs, and writes only what differs.
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

// mark writes what differs from n, the node as just read. It writes the taint first: the patch of the taint requires
// the version that was read, and the patch of the condition changes the version.
func (c *Client) mark(ctx context.Context, n markedNode, want Marks) error {
	return errors.Join(c.setTaint(ctx, n, want.Taint), c.setCondition(ctx, n, want.Condition))
}

// setCondition patches the condition. A strategic merge patch merges conditions by type, so other conditions are kept.
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

// setTaint patches the taint. The API server replaces the list of taints as a whole, so the patch contains the resource
// version at which the list was read, and fails with a conflict if the Node has changed since.
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

// withTaint returns the current taints with want as the only taint of TaintKey, and whether they differ from current.
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

// RemoveMarks removes the condition and the taint from all nodes. It stops on errors as RemoveLabels does.
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
