package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/gpucdi/gpucdi/test/node/images"
)

// forcedTimeout bounds the time until the next pod runs. A kubelet repeats a failed NodePrepareResources after a minute
// or more.
const forcedTimeout = 5 * time.Minute

// forced measures how soon a pod runs after the pod that had all GPUs was deleted by force. The claim of each pod is
// generated from a template, so the next one waits until the container of the deleted pod has ended.
func (n *draNode) forced(ctx context.Context, s stack, deletes int) (took []time.Duration, err error) {
	const template = "all"
	if err := n.api.template(ctx, template, object{"count": gpuCount}); err != nil {
		return nil, err
	}
	r, err := n.serve(ctx, s)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, n.deletePods(ctx), n.stop(ctx, r)) }()
	for i := range deletes + 1 {
		t, err := n.replace(ctx, fmt.Sprint("all-", i), fmt.Sprint("all-", i+1), template)
		if err != nil {
			return nil, fmt.Errorf("%s: %w\n%s", s.name, err, n.diagnostics(ctx, s))
		}
		if i > 0 {
			took = append(took, t)
		}
	}
	return took, nil
}

// replace deletes a pod by force, if it exists, and creates the next one. It returns the time until the container of that
// one has started.
func (n *draNode) replace(ctx context.Context, deleted, next, template string) (time.Duration, error) {
	ctx, cancel := context.WithTimeout(ctx, forcedTimeout)
	defer cancel()
	fields := object{
		"resourceClaims": []object{{"name": "gpu", "resourceClaimTemplateName": template}},
		"containers": []object{{
			"name": "main", "image": images.DebianName, "imagePullPolicy": "Never", "resources": object{"claims": []object{{"name": "gpu"}}},
			"command": []string{"sh", "-c", "trap exit TERM; while :; do sleep 0.1; done"}, // ends when it is asked to
		}},
	}
	begin := time.Now()
	response, err := n.api.send(ctx, http.MethodDelete, podsPath+"/"+deleted+"?gracePeriodSeconds=0", nil)
	if err != nil {
		return 0, err
	}
	if err := response.Body.Close(); err != nil {
		return 0, err
	}
	if response.StatusCode != http.StatusOK && response.StatusCode != http.StatusNotFound {
		return 0, fmt.Errorf("deleting pod %s: %s", deleted, response.Status)
	}
	if err := n.api.createPod(ctx, next, object{}, fields); err != nil {
		return 0, err
	}
	container, err := n.events.next(ctx)
	return container.at.Sub(begin), err
}
