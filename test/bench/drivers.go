package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	nodebox "github.com/gpucdi/gpucdi/test/node"
)

// driverDir is the directory of NVIDIA's DRA driver in the box.
const driverDir = "/opt/nvidia-dra-driver"

const (
	// publications is the number of starts of each DRA driver.
	publications = 20
	// restorations is the number of deletions of NVIDIA's ResourceSlices, which it publishes again after half a minute.
	restorations = 3
	// draDeletes is the number of pods that are deleted by force, nvidiaDeletes that with NVIDIA's driver, where the next pod
	// waits for a minute or more.
	draDeletes, nvidiaDeletes = 5, 2
	// publishTarget is the maximum ratio of the times from the start to the ResourceSlices: 0.15 s to 1.14 s.
	publishTarget = 0.13
)

// nvidiaDRA is NVIDIA's DRA driver with the log level of its Helm chart, and the kubeconfig of the box's administrator.
func nvidiaDRA() stack {
	return stack{name: "nvidia-dra", claims: true, hooks: true, command: []string{
		"sh", "-c", `KUBECONFIG=~/.kube/config exec "$@"`, "sh", driverDir + "/gpu-kubelet-plugin", "--node-name", nodebox.Name, "--image-name", "unused",
		"--cdi-root", "/run/cdi", "--container-driver-root", "/", "--nvidia-cdi-hook-path", toolkitDir + "/nvidia-cdi-hook", "-v", "4"}}
}

// publish measures how soon the ResourceSlices of both drivers have all GPUs: after the start of the driver, and after
// their deletion.
func (b *bench) publish(ctx context.Context, n *draNode) error {
	ours, nvidia := &publisher{stack: withDRA(), restorations: publications}, &publisher{stack: nvidiaDRA(), restorations: restorations}
	for range publications {
		for _, p := range []*publisher{ours, nvidia} {
			if err := p.publish(ctx, n); err != nil {
				return fmt.Errorf("%s: %w", p.stack.name, err)
			}
		}
	}
	b.driverTable.add(fmt.Sprintf("start to %d GPUs in ResourceSlices", gpuCount), typical(ours.starts), typical(nvidia.starts), ratio(publishTarget))
	b.driverTable.add("ResourceSlices deleted to published again", typical(ours.restored), typical(nvidia.restored), atMost("1 s", time.Second))
	return nil
}

// A publisher is a DRA driver with its measurements.
type publisher struct {
	stack            stack
	restorations     int // how often it restores its slices, at most
	starts, restored []time.Duration
}

// publish starts the driver, deletes its slices and stops it.
func (p *publisher) publish(ctx context.Context, n *draNode) (err error) {
	r, took, err := n.startPublishing(ctx, p.stack)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, n.stop(ctx, r)) }()
	p.starts = append(p.starts, took)
	if len(p.restored) == p.restorations {
		return nil
	}
	if took, err = n.restore(ctx); err != nil {
		return fmt.Errorf("%w\n%s", err, n.diagnostics(ctx, p.stack))
	}
	p.restored = append(p.restored, took)
	return nil
}

// restore deletes the slices and returns the time until they have all GPUs again.
func (n *draNode) restore(ctx context.Context) (time.Duration, error) {
	if err := sleep(ctx, podPause); err != nil {
		return 0, err
	}
	return timed(func() error {
		if err := n.deleteSlices(ctx); err != nil {
			return err
		}
		return n.slices.await(ctx, gpuCount)
	})
}

// compareClaims compares the claims and the size of both drivers.
func (b *bench) compareClaims(ours, nvidia *side) error {
	b.driverTable.add("NodePrepareResources, 1 GPU, seen by the kubelet", typical(ours.calls), typical(nvidia.calls), none)
	b.driverTable.add("pod with a claim for 1 GPU", typical(ours.pods), typical(nvidia.pods), none)
	b.driverTable.add(fmt.Sprintf("resident after %d claims", draPods+1), medianMemory(ours.memory).figure(), medianMemory(nvidia.memory).figure(), none)
	var sizes []figure
	for _, file := range []string{b.gpucdi, filepath.Join(b.nvidiaDriver, "gpu-kubelet-plugin")} {
		info, err := os.Stat(file)
		if err != nil {
			return err
		}
		size := float64(info.Size()) / 1e6
		sizes = append(sizes, figure{fmt.Sprintf("%.1f MB", size), size})
	}
	b.driverTable.add("size of the program", sizes[0], sizes[1], target{text: "25 MB", value: 25})
	return nil
}

// forcedDeletes measures with both drivers how soon a pod runs after the pod that had all GPUs was deleted by force.
func (b *bench) forcedDeletes(ctx context.Context, n *draNode) error {
	ours, err := n.forced(ctx, withDRA(), draDeletes)
	if err != nil {
		return err
	}
	nvidia, err := n.forced(ctx, nvidiaDRA(), nvidiaDeletes)
	if err != nil {
		return err
	}
	b.driverTable.add("pod deleted by force to the next with its GPUs", typical(ours), typical(nvidia), atMost("3 s", 3*time.Second))
	return nil
}
