package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"
)

const (
	// limitsVersion is a driver version that can limit the memory of pods.
	limitsVersion = "615.71.09"
	// bindings is the number of pods of each kind whose binding is measured.
	bindings = 10
)

// controllerAccess gives the agent's service account the permissions of the template controller. Both run as processes
// on the node, where there is one service account.
const controllerAccess = `apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: bench-templates}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: gpucdi-vcuda}
subjects: [{kind: ServiceAccount, name: gpucdi, namespace: default}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: bench-templates, namespace: default}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: gpucdi-vcuda}
subjects: [{kind: ServiceAccount, name: gpucdi, namespace: default}]
`

// parts measures the preparation of claims for parts of GPUs and for whole GPUs in turn, and the binding of pods that
// request vcuda-core and vcuda-memory.
func (b *bench) parts(ctx context.Context, n *draNode) error {
	if err := n.driver.Upgrade(limitsVersion); err != nil {
		return err
	}
	if _, err := n.EmulateCgroup2(ctx); err != nil {
		return err
	}
	sides := []*side{{stack: withParts()}, {stack: withDRA()}}
	if err := n.turns(ctx, sides); err != nil {
		return err
	}
	part, whole := median(sides[0].prepares), median(sides[1].prepares)
	b.draTable.add("NodePrepareResources, part of a GPU", difference([]time.Duration{part - whole}, micros).with(", %s in total, whole GPU %s", micros(part), micros(whole)),
		figure{}, atMost("+5 ms", 5*time.Millisecond))
	return b.bindings(ctx, n)
}

// bindings measures how soon pods are bound: those without a GPU, those that request vcuda-core and vcuda-memory of an
// existing template, and those of a new one.
func (b *bench) bindings(ctx context.Context, n *draNode) (err error) {
	if err := errors.Join(n.applyChart(ctx, "dra.enabled=true,vcuda.enabled=true", "vcuda"), n.Apply(ctx, []byte(controllerAccess))); err != nil {
		return err
	}
	if _, err := n.Kubectl(ctx, "delete", "deployment", "gpucdi-vcuda", "--cascade=foreground"); err != nil { // it runs as a process
		return err
	}
	agent, err := n.serve(ctx, withParts())
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, n.stop(ctx, agent)) }()
	controller, err := n.run(ctx, stack{name: "templates", command: inCluster("templates", "--lease-namespace", "default")})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, controller.stop(ctx)) }()
	bound, err := watchBindings(ctx, &n.server)
	if err != nil {
		return err
	}
	const existing = 1000 // MiB
	var plain, known, unknown []time.Duration
	for i := -1; i < bindings; i++ { // the first round is not measured: the policies and the controller may just have started
		for _, pod := range []struct {
			name   string
			memory int // in MiB; 0: no GPU
			took   *[]time.Duration
		}{{"plain", 0, &plain}, {"known", existing, &known}, {"unknown", existing + 2 + i, &unknown}} {
			took, err := n.bind(ctx, pod.name, pod.memory, bound)
			if err != nil {
				return fmt.Errorf("%w\n%s", err, n.diagnostics(ctx, stack{name: "templates"}))
			}
			if i >= 0 {
				*pod.took = append(*pod.took, took)
			}
		}
	}
	more := func(times []time.Duration) figure {
		return difference([]time.Duration{median(times) - median(plain)}, millis).with(", %s in total, without a GPU %s", millis(median(times)), millis(median(plain)))
	}
	b.draTable.add("vcuda pod bound, new template", more(unknown), figure{}, atMost("+500 ms", 500*time.Millisecond))
	b.draTable.add("vcuda pod bound, existing template", more(known), figure{}, atMost("+200 ms", 200*time.Millisecond))
	return nil
}

// bind creates a pod that requests memory, in MiB, and 5 cores, or no GPU if memory is 0. It returns the time until the
// pod is bound, and deletes the pod.
func (n *draNode) bind(ctx context.Context, name string, memory int, bound <-chan string) (time.Duration, error) {
	ctx, cancel := context.WithTimeout(ctx, podTimeout)
	defer cancel()
	resources := object{}
	if memory > 0 {
		resources = object{"limits": object{"nvidia.com/vcuda-core": "5", "nvidia.com/vcuda-memory": fmt.Sprint(memory)}}
	}
	took, err := timed(func() error {
		err := n.api.createPod(ctx, name, resources, nil)
		for err == nil {
			select {
			case pod, ok := <-bound:
				switch {
				case !ok:
					return errors.New("the API server ended the watch of pods")
				case pod == name:
					return nil
				}
			case <-ctx.Done():
				err = fmt.Errorf("waiting for the binding of pod %s: %w", name, ctx.Err())
			}
		}
		return err
	})
	if err != nil {
		return 0, err
	}
	return took, n.deletePods(ctx)
}

// watchBindings watches the pods until ctx ends, and returns the names of those that are bound, each once. The channel is
// closed when the watch ends.
func watchBindings(ctx context.Context, api *endpoint) (<-chan string, error) {
	bound := make(chan string, 1000)
	return bound, api.watch(ctx, podsPath, func(events io.Reader) {
		defer close(bound)
		boundPods(events, bound)
	})
}

// boundPods sends the name of each pod once it is bound, until the watch ends.
func boundPods(events io.Reader, bound chan<- string) {
	decoder, seen := json.NewDecoder(events), map[string]bool{}
	for {
		var event struct {
			Object struct {
				Metadata struct{ Name, UID string }
				Spec     struct{ NodeName string }
			}
		}
		if decoder.Decode(&event) != nil {
			return
		}
		pod := event.Object
		if pod.Spec.NodeName != "" && !seen[pod.Metadata.UID] {
			seen[pod.Metadata.UID] = true
			bound <- pod.Metadata.Name
		}
	}
}
