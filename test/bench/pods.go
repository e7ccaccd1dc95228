package main

import (
	"context"
	"errors"
	"fmt"
	"path"
	"regexp"
	"slices"
	"strings"
	"time"
)

const (
	// singlePods is the number of pods of each stack that are created one by one.
	singlePods = 15
	// burstSize is the number of pods that are created at once, burstCount the number of bursts of each stack.
	burstSize, burstCount = 100, 3
	// podTimeout bounds the start of a single pod, burstTimeout the start and the end of a burst.
	podTimeout, burstTimeout = time.Minute, 10 * time.Minute
	// podPause is the time after the end of pods before the next start.
	podPause = time.Second
)

// podTarget is the maximum ratio of gpucdi's time to that of NVIDIA's stack.
const podTarget = 0.8

// pods measures the time from the creation of a pod to the start of its container with a GPU, on one node with both
// stacks.
func (b *bench) pods(ctx context.Context) (err error) {
	n, err := b.startPodNode(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, n.close()) }()
	stop, err := n.serve(ctx, own())
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, stop()) }()
	if err := b.comparePods(ctx, n, standardNVIDIA(), true); err != nil {
		return err
	}
	return b.comparePods(ctx, n, nvidiaCDI(), false)
}

// comparePods measures pods of gpucdi and of another stack in turn.
func (b *bench) comparePods(ctx context.Context, n *podNode, other stack, bursts bool) (err error) {
	stop, err := n.serve(ctx, other)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, stop()) }()
	stacks := []stack{own(), other}
	// The first pod of each stack reads the stack's programs from disk.
	if _, err := n.inTurn(ctx, stacks, 1, 1); err != nil {
		return err
	}
	took, err := n.inTurn(ctx, stacks, singlePods, 1)
	if err != nil {
		return err
	}
	through, short := "", ""
	if other.class == "" {
		through, short = ", NVIDIA's plugin with CDI", ", NVIDIA's plugin with CDI"
	}
	b.podTable.add("pod with 1 GPU"+through, typical(took[0]), typical(took[1]), ratio(podTarget)).
		summarize("pod created to container running with 1 GPU" + short)
	if !bursts {
		return nil
	}
	if took, err = n.inTurn(ctx, stacks, burstCount, burstSize); err != nil {
		return err
	}
	b.podTable.add(fmt.Sprintf("burst of %d pods%s", burstSize, through), typical(took[0]), typical(took[1]), ratio(podTarget)).
		summarize(fmt.Sprintf("%d pods created to all running", burstSize))
	return nil
}

// inTurn creates pods of each stack in turn, size at once. Each round begins with another stack. It returns the
// durations by stack.
func (n *podNode) inTurn(ctx context.Context, stacks []stack, rounds, size int) ([][]time.Duration, error) {
	took := make([][]time.Duration, len(stacks))
	for i := range rounds {
		for j := range stacks {
			k := (i + j) % len(stacks)
			t, err := n.startPods(ctx, stacks[k], size)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", stacks[k].name, err)
			}
			took[k] = append(took[k], t)
		}
	}
	return took, nil
}

// startPods creates pods at once, and returns the time until the last of their containers was started. It then deletes
// them.
func (n *podNode) startPods(ctx context.Context, s stack, count int) (time.Duration, error) {
	timeout := podTimeout
	if count > 1 {
		timeout = burstTimeout
	}
	deadline, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	begin := time.Now()
	for i := range count {
		if err := n.api.create(deadline, fmt.Sprintf("%s-%d", s.name, i), s); err != nil {
			return 0, err
		}
	}
	containers := make([]started, count)
	for i := range containers {
		c, err := n.tasks.next(deadline)
		if err != nil {
			pods, _ := n.api.pods(ctx)
			return 0, fmt.Errorf("%w\n%s", err, slices.Concat(pods...))
		}
		containers[i] = c
	}
	var last time.Time
	for _, c := range containers {
		if err := n.checkGPU(c); err != nil {
			return 0, err
		}
		if c.at.After(last) {
			last = c.at
		}
	}
	if err := n.api.deleteAll(ctx); err != nil {
		return 0, err
	}
	return last.Sub(begin), sleep(ctx, podPause)
}

// gpuNode is the path of the device node of a GPU.
var gpuNode = regexp.MustCompile(`^/dev/nvidia[0-9]+$`)

// checkGPU checks that a container has one GPU and a driver library.
func (n *podNode) checkGPU(c started) error {
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
	if gpus != 1 || libraries == 0 {
		return fmt.Errorf("pod %s has %d GPUs, want 1, and %d mounts of libcuda", c.pod, gpus, libraries)
	}
	return nil
}
