package cluster

import (
	"context"
	"encoding/json"
	"fmt"
	"net/url"
	"slices"
	"time"
)

// followDuration is the duration of a watch of pods. The list before each watch finds changes whose events were lost.
const followDuration = 2 * time.Minute

// notEnded selects the pods whose containers run, or may still start.
const notEnded = "status.phase!=Succeeded,status.phase!=Failed"

// podsPerPage is smaller than objectsPerPage, because a pod can be larger than 1 MiB. maxPages bounds a list to 20,000
// pods.
const podsPerPage = "50"

// maxTemplates bounds the templates of a ClaimingPod: Kubernetes does not limit the claims of a pod.
const maxTemplates = 64

// ClaimingPod is a pod with references to ResourceClaimTemplates.
type ClaimingPod struct {
	Namespace, Name, UID string

	Templates []string // names of the templates that it refers to, at most maxTemplates, without duplicates
	Waiting   bool     // for the creation of a claim from one of Templates
}

// UnmarshalJSON decodes a Pod.
func (p *ClaimingPod) UnmarshalJSON(data []byte) error {
	var object struct {
		Metadata struct {
			Namespace string `json:"namespace"`
			Name      string `json:"name"`
			UID       string `json:"uid"`
		} `json:"metadata"`
		Spec struct {
			ResourceClaims []struct {
				Name     string `json:"name"`
				Template string `json:"resourceClaimTemplateName"`
			} `json:"resourceClaims"`
		} `json:"spec"`
		Status struct {
			ResourceClaimStatuses []struct {
				Name string `json:"name"`
			} `json:"resourceClaimStatuses"`
		} `json:"status"`
	}
	if err := json.Unmarshal(data, &object); err != nil {
		return err
	}
	m := object.Metadata
	*p = ClaimingPod{Namespace: m.Namespace, Name: m.Name, UID: m.UID}
	created := map[string]bool{}
	for _, s := range object.Status.ResourceClaimStatuses {
		created[s.Name] = true
	}
	for _, c := range object.Spec.ResourceClaims {
		if c.Template == "" {
			continue
		}
		p.Waiting = p.Waiting || !created[c.Name]
		if len(p.Templates) < maxTemplates && !slices.Contains(p.Templates, c.Template) {
			p.Templates = append(p.Templates, c.Template)
		}
	}
	return nil
}

// FollowPods calls listed with the pods that match a label selector and have not ended, in all namespaces, then changed
// for each change of such a pod; deleted is also set when it ends. It returns nil after followDuration, or when ctx ends
// after the list.
func (c *Client) FollowPods(ctx context.Context, selector string, listed func([]ClaimingPod), changed func(pod ClaimingPod, deleted bool)) error {
	query := url.Values{"labelSelector": {selector}, "fieldSelector": {notEnded}, "limit": {podsPerPage}}
	if err := follow(ctx, c, "/api/v1/pods", query, followDuration, listed, changed); err != nil {
		return fmt.Errorf("pods with label %s: %w", selector, err)
	}
	return nil
}
