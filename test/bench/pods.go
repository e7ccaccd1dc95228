package main

import (
	"context"
	"errors"
	"fmt"
	"path"
	"regexp"
	"strings"
	"time"
)

const (
	// singleRounds is the number of turns of each stack. Each turn measures singlePods pods, one at a time.
	singleRounds, singlePods = 5, 3
	// burstSize is the number of pods of a burst, burstCount the number of bursts of each stack.
	burstSize, burstCount = 100, 3
	// podTimeout bounds the start of a single pod, burstTimeout the start of a burst and each deletion of pods.
	podTimeout, burstTimeout = time.Minute, 10 * time.Minute
	// podPause is the time from the deletion of pods to the next start.
	podPause = time.Second
)

// podTarget is the maximum ratio of gpucdi's time to that of NVIDIA's stack.
const podTarget = 0.8

// pods measures the time from the creation of a pod to the start of its container with a GPU. The stacks take turns on
// one node.
func (b *bench) pods(ctx context.Context) (err error) {
	n, err := b.startPodNode(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, n.close()) }()
	stacks := []stack{gpucdiStack(), nvidiaStack(), nvidiaCDIStack(), noGPUStack()}
	took, err := n.inTurn(ctx, stacks, singleRounds, singlePods, 1)
	if err != nil {
		return err
	}
	const withCDI = ", NVIDIA's plugin with CDI"
	one := "pod created to container running with 1 GPU"
	b.podTable.add("pod with 1 GPU", typical(took[0]), typical(took[1]), ratio(podTarget)).summarize(one)
	b.podTable.add("pod with 1 GPU"+withCDI, typical(took[0]), typical(took[2]), none).summarize(one + withCDI)
	added := func(i int) figure { return difference([]time.Duration{median(took[i]) - median(took[3])}, millis) }
	b.podTable.add("GPU of a pod", added(0), added(1), none)
	if took, err = n.inTurn(ctx, stacks[:2], burstCount, 1, burstSize); err != nil {
		return err
	}
	b.podTable.add(fmt.Sprintf("burst of %d pods", burstSize), typical(took[0]), typical(took[1]), ratio(podTarget)).
		summarize(fmt.Sprintf("%d pods created to all running", burstSize))
	return nil
}

// inTurn lets the stacks take turns; each round begins with another stack. A turn starts one pod that is not measured,
// and then count bursts of size pods. It returns the durations by stack.
func (n *podNode) inTurn(ctx context.Context, stacks []stack, rounds, count, size int) ([][]time.Duration, error) {
	took := make([][]time.Duration, len(stacks))
	for i := range rounds {
		for j := range stacks {
			k := (i + j) % len(stacks)
			t, err := n.turn(ctx, stacks[k], count, size)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", stacks[k].name, err)
			}
			took[k] = append(took[k], t...)
		}
	}
	return took, nil
}

func (n *podNode) turn(ctx context.Context, s stack, count, size int) (took []time.Duration, err error) {
	r, err := n.serve(ctx, s)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, r.stop(ctx)) }()
	if _, err := n.startPods(ctx, s, 1); err != nil {
		return nil, err
	}
	for range count {
		t, err := n.startPods(ctx, s, size)
		if err != nil {
			return nil, err
		}
		took = append(took, t)
	}
	return took, nil
}

// startPods creates a burst of pods, returns the time until the last of their containers was started, and deletes the
// pods.
func (n *podNode) startPods(ctx context.Context, s stack, count int) (time.Duration, error) {
	took, err := n.runPods(ctx, s, count)
	if err != nil {
		return 0, err
	}
	return took, n.deletePods(ctx)
}

// deletePods deletes all pods and waits for podPause.
func (n *podNode) deletePods(ctx context.Context) error {
	if err := n.api.deleteAll(ctx); err != nil {
		return err
	}
	return sleep(ctx, podPause)
}

// podName returns the name of a pod in a burst, and of its claim template.
func podName(s stack, i int) string { return fmt.Sprintf("%s-%d", s.name, i) }

// runPods creates a burst of pods and returns the time until the last of their containers was started. Their claim
// templates are created before.
func (n *podNode) runPods(ctx context.Context, s stack, count int) (time.Duration, error) {
	timeout := podTimeout
	if count > 1 {
		timeout = burstTimeout
	}
	deadline, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	names := make([]string, count)
	for i := range names {
		names[i] = podName(s, i)
		if !s.claims {
			continue
		}
		if err := n.api.template(deadline, names[i], s.request); err != nil {
			return 0, err
		}
	}
	begin := time.Now()
	for _, name := range names {
		if err := n.api.create(deadline, name, s); err != nil {
			return 0, err
		}
	}
	last, err := n.awaitContainers(deadline, s, count)
	if err != nil {
		return 0, fmt.Errorf("%w\n%s", err, n.diagnostics(ctx, s))
	}
	return last.Sub(begin), nil
}

// awaitContainers waits for the containers of a burst, checks their GPUs and returns the start time of the last one.
func (n *podNode) awaitContainers(ctx context.Context, s stack, count int) (last time.Time, err error) {
	containers := make([]started, count)
	for i := range containers {
		if containers[i], err = n.events.next(ctx); err != nil {
			return last, err
		}
	}
	for _, c := range containers {
		if err := n.checkGPU(c, s); err != nil {
			return last, err
		}
		if c.at.After(last) {
			last = c.at
		}
	}
	return last, nil
}

// gpuNode is the path of the device node of a GPU.
var gpuNode = regexp.MustCompile(`^/dev/nvidia[0-9]+$`)

// checkGPU checks that a container has one GPU and libcuda, injected by a stack. If the pods of the stack request no GPU,
// the container must have neither.
func (n *podNode) checkGPU(c started, s stack) error {
	spec, err := n.Spec("containerd://" + c.id)
	if err != nil {
		return err
	}
	gpus, libraries := 0, 0
	for _, d := range spec.Linux.Devices {
		if gpuNode.MatchString(d.Path) {
			gpus++
		}
	}
	for _, m := range spec.Mounts {
		if strings.HasPrefix(path.Base(m.Destination), "libcuda.so") {
			libraries++
		}
	}
	want := 0
	if s.devices > 0 || s.claims {
		want = 1
	}
	if gpus != want || (libraries > 0) != (want > 0) {
		return fmt.Errorf("pod %s has %d GPUs, want %d, and %d mounts of libcuda", c.pod, gpus, want, libraries)
	}
	if hooks := hookCount(spec.Hooks); hooks > 0 != s.hooks {
		return fmt.Errorf("pod %s has %d hooks, so its GPU is not from %s", c.pod, hooks, s.name)
	}
	return nil
}
