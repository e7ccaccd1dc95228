package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/gpucdi/gpucdi/test/node/images"
)

// forcedDeletes is the number of pods that are deleted by force.
const forcedDeletes = 5

// forced measures how soon a pod runs after the pod that had all GPUs was deleted by force. The claim of each pod is
// generated from a template, so the next one waits until the container of the deleted pod has ended.
func (b *bench) forced(ctx context.Context, n *draNode) (err error) {
	const template = "all"
	if err := n.api.template(ctx, template, object{"count": gpuCount}); err != nil {
		return err
	}
	r, err := n.serve(ctx, withDRA())
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, n.deletePods(ctx), n.stop(ctx, r)) }()
	var took []time.Duration
	for i := range forcedDeletes + 1 {
		t, err := n.replace(ctx, fmt.Sprint("all-", i), fmt.Sprint("all-", i+1), template)
		if err != nil {
			return fmt.Errorf("%w\n%s", err, n.diagnostics(ctx, withDRA()))
		}
		if i > 0 {
			took = append(took, t)
		}
	}
	b.draTable.add("pod deleted by force to the next with its GPUs", typical(took), figure{}, atMost("3 s", 3*time.Second))
	return nil
}

// replace deletes a pod by force, if it exists, and creates the next one. It returns the time until the container of that
// one has started.
func (n *draNode) replace(ctx context.Context, deleted, next, template string) (time.Duration, error) {
	ctx, cancel := context.WithTimeout(ctx, podTimeout)
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
