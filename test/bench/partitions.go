package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

const (
	// partitions is the number of MIG devices of each GPU, replicas the number of replicas of each MIG device, and
	// migProfile the profile of the MIG devices.
	partitions, replicas = 7, 8
	migProfile           = "1g.10gb"

	// partitionedStarts is the number of starts of each plugin on the partitioned node.
	partitionedStarts = 5
)

// partition partitions each GPU of the node.
func (n *node) partition() error {
	for _, g := range n.driver.State().GPUs {
		if err := n.driver.Partition(g.UUID, slices.Repeat([]string{migProfile}, partitions)...); err != nil {
			return err
		}
	}
	n.count *= partitions * replicas
	return nil
}

// list opens a stream of device lists and receives the first.
func list(ctx context.Context, plugin v1beta1.DevicePluginClient) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := plugin.ListAndWatch(ctx, &v1beta1.Empty{})
	if err != nil {
		return err
	}
	_, err = stream.Recv()
	return err
}

// partitioned measures the plugins on a node with many devices: 16 GPUs, each with 7 MIG devices with 8 replicas.
func (b *bench) partitioned(ctx context.Context) (err error) {
	n := b.nodes.partitioned
	var ours, nvidia []time.Duration
	for range partitionedStarts - 1 {
		p, err := n.serveBoth(ctx, b.agentShared, b.nvidiaShared)
		if err != nil {
			return err
		}
		ours, nvidia = append(ours, p.ours.took), append(nvidia, p.nvidia.took)
		if err := p.stop(); err != nil {
			return err
		}
	}
	p, err := n.serveBoth(ctx, b.agentShared, b.nvidiaShared)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, p.stop()) }()
	ours, nvidia = append(ours, p.ours.took), append(nvidia, p.nvidia.took)
	b.pluginTable.add(fmt.Sprintf("start to first ListAndWatch, %d devices", n.count), typical(ours), typical(nvidia), ratio(0.6))
	b.pluginTable.add(fmt.Sprintf("list of %d devices", n.count), size(p.ours.size), size(p.nvidia.size), ratio(1))
	return b.callBoth(ctx, p, fewTurns, []call{
		{fmt.Sprintf("ListAndWatch, first list of %d devices", n.count), list, none, ""},
		{fmt.Sprintf("Allocate, 1 of %d", n.count), allocate(p.ours.devices[:1]), atMost("+20 µs", 20*time.Microsecond), fmt.Sprintf("Allocate, 1 of %d devices, beyond an empty call", n.count)},
	})
}

func size(n int) figure { return figure{fmt.Sprintf("%.1f kB", float64(n)/1000), float64(n)} }
