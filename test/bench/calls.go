package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	api "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

// rounds is how often each call is made.
const rounds = 3000

// A request is made of the plugin.
type request func(context.Context, api.DevicePluginClient) error

// A call is a request to measure, the times it took, and how much longer each was than the
// call that does nothing which came right before it.
type call struct {
	what        string
	do          request
	aim, nvidia string

	took, above []time.Duration
}

// nothing is answered with a constant: it takes what gRPC takes.
func nothing(ctx context.Context, plugin api.DevicePluginClient) error {
	_, err := plugin.GetDevicePluginOptions(ctx, &api.Empty{})
	return err
}

func allocate(ids []string) request {
	message := &api.AllocateRequest{ContainerRequests: []*api.ContainerAllocateRequest{{DevicesIds: ids}}}
	return func(ctx context.Context, plugin api.DevicePluginClient) error {
		_, err := plugin.Allocate(ctx, message)
		return err
	}
}

func prefer(size int, ids []string) request {
	message := &api.PreferredAllocationRequest{ContainerRequests: []*api.ContainerPreferredAllocationRequest{
		{AvailableDeviceIDs: ids, AllocationSize: int32(size)},
	}}
	return func(ctx context.Context, plugin api.DevicePluginClient) error {
		response, err := plugin.GetPreferredAllocation(ctx, message)
		if err != nil {
			return err
		}
		if got := len(response.GetContainerResponses()[0].GetDeviceIDs()); got != size {
			return fmt.Errorf("%d devices preferred, not %d", got, size)
		}
		return nil
	}
}

// eight measures the calls on a node with 8 GPUs.
func (b *bench) eight(ctx context.Context) error {
	return b.calls(ctx, b.nodes.eight, func(ids []string) []*call {
		return []*call{
			{what: "a call that does nothing", do: nothing, nvidia: "127 µs"},
			{what: "Allocate, 1 GPU", do: allocate(ids[:1]), aim: "+10 µs", nvidia: "+20 µs"},
			{what: "Allocate, 8 GPUs", do: allocate(ids), aim: "+10 µs"},
			{what: "GetPreferredAllocation, 4 of 8", do: prefer(4, ids), aim: "+100 µs", nvidia: "2.7 ms in all"},
		}
	})
}

// sixteen measures what grows with the number of GPUs.
func (b *bench) sixteen(ctx context.Context) error {
	return b.calls(ctx, b.nodes.sixteen, func(ids []string) []*call {
		return []*call{{what: "GetPreferredAllocation, 8 of 16", do: prefer(8, ids), aim: "+100 µs"}}
	})
}

// calls makes the calls in turn, each after one that does nothing, and adds a row for each.
func (b *bench) calls(ctx context.Context, n *node, of func(ids []string) []*call) (err error) {
	a, err := b.serve(ctx, n)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, a.stop()) }()
	plugin, calls := api.NewDevicePluginClient(a.conn), of(a.devices)
	for range rounds {
		for _, c := range calls {
			noop, err := timed(func() error { return nothing(ctx, plugin) })
			if err != nil {
				return err
			}
			took, err := timed(func() error { return c.do(ctx, plugin) })
			if err != nil {
				return fmt.Errorf("%s: %w", c.what, err)
			}
			c.took = append(c.took, took)
			c.above = append(c.above, took-noop)
		}
	}
	for _, c := range calls {
		value := fmt.Sprintf("%s, %s in all", above(median(c.above), micros), micros(median(c.took)))
		b.table.add(c.what, value, c.aim, c.nvidia)
	}
	return nil
}

func timed(do func() error) (time.Duration, error) {
	began := time.Now()
	err := do()
	return time.Since(began), err
}
