package cluster

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
)

// ErrAlreadyExists means that an object of the same name exists.
var ErrAlreadyExists = errors.New("already exists")

// ClaimTemplate identifies a ResourceClaimTemplate.
type ClaimTemplate struct {
	Metadata struct {
		Namespace string            `json:"namespace"`
		Name      string            `json:"name"`
		UID       string            `json:"uid"`
		Labels    map[string]string `json:"labels"`
	} `json:"metadata"`
}

func claimTemplatesPath(namespace string) string {
	return "/apis/resource.k8s.io/v1/namespaces/" + url.PathEscape(namespace) + "/resourceclaimtemplates"
}

// ClaimTemplates returns the ResourceClaimTemplates that match a label selector, in all namespaces.
func (c *Client) ClaimTemplates(ctx context.Context, selector string) (all []ClaimTemplate, err error) {
	_, err = list(ctx, c.reuse, c.host+"/apis/resource.k8s.io/v1/resourceclaimtemplates", url.Values{"labelSelector": {selector}}, "application/json",
		func(t ClaimTemplate) error { all = append(all, t); return nil })
	if err != nil {
		return nil, fmt.Errorf("listing ResourceClaimTemplates: %w", err)
	}
	return all, nil
}

// CreateClaimTemplate creates a ResourceClaimTemplate. The error wraps ErrAlreadyExists if the namespace has one of that
// name.
func (c *Client) CreateClaimTemplate(ctx context.Context, namespace string, template any) error {
	err := c.exchangeObject(ctx, http.MethodPost, claimTemplatesPath(namespace)+"?fieldManager="+fieldManager, template, nil)
	if err != nil {
		return fmt.Errorf("creating ResourceClaimTemplate in namespace %s: %w", namespace, err)
	}
	return nil
}

// DeleteClaimTemplate deletes the ResourceClaimTemplate with the name and UID of t. It succeeds if none has that name,
// and fails if one has the name but another UID.
func (c *Client) DeleteClaimTemplate(ctx context.Context, t ClaimTemplate) error {
	options := map[string]any{"apiVersion": "v1", "kind": "DeleteOptions", "preconditions": map[string]string{"uid": t.Metadata.UID}}
	err := c.exchangeObject(ctx, http.MethodDelete, claimTemplatesPath(t.Metadata.Namespace)+"/"+url.PathEscape(t.Metadata.Name), options, nil)
	if err != nil && !errors.Is(err, ErrNotFound) {
		return fmt.Errorf("deleting ResourceClaimTemplate %s/%s: %w", t.Metadata.Namespace, t.Metadata.Name, err)
	}
	return nil
}
