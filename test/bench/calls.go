package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	api "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

const (
	// turn is how often a call is made of one plugin before it is the other's turn. Longer than
	// once, since the first call after a pause is slower.
	turn = 10
	// manyTurns is how many turns each has, and fewTurns where NVIDIA's plugin takes long.
	manyTurns, fewTurns = 300, 30
)

// A request is made of a plugin.
type request func(context.Context, api.DevicePluginClient) error

// A call is a request to measure.
type call struct {
	what string
	do   request
	aim  string
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
	return b.calls(ctx, b.nodes.eight, manyTurns, func(ids []string) []call {
		return []call{
			{"a call that does nothing", nothing, ""},
			{"Allocate, 1 GPU", allocate(ids[:1]), "+10 µs"},
			{"Allocate, 8 GPUs", allocate(ids), "+10 µs"},
			{"GetPreferredAllocation, 4 of 8", prefer(4, ids), "+100 µs"},
		}
	})
}

// sixteen measures what grows with the number of GPUs.
func (b *bench) sixteen(ctx context.Context) error {
	return b.calls(ctx, b.nodes.sixteen, fewTurns, func(ids []string) []call {
		return []call{{"GetPreferredAllocation, 8 of 16", prefer(8, ids), "+100 µs"}}
	})
}

// times are those that a call took, and how much longer each was than the calls that do nothing
// right before and after it.
type times struct{ took, above []time.Duration }

func (t *times) figure() figure {
	return beyond(t.above, micros).with(", %s in all", micros(median(t.took)))
}

// calls makes each call of both plugins in turn, and adds a row for it.
func (b *bench) calls(ctx context.Context, n *node, turns int, of func(ids []string) []call) (err error) {
	p, err := b.serveBoth(ctx, n)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, p.stop()) }()
	for _, c := range of(p.ours.devices) {
		var ours, nvidia times
		for range turns {
			err := errors.Join(p.ours.repeat(ctx, c.do, &ours), p.nvidia.repeat(ctx, c.do, &nvidia))
			if err != nil {
				return fmt.Errorf("%s: %w", c.what, err)
			}
		}
		b.pluginTable.add(c.what, ours.figure(), nvidia.figure(), c.aim)
	}
	return nil
}

// repeat makes a call for one turn, and one that does nothing before each and at the end.
func (p *plugin) repeat(ctx context.Context, do request, t *times) error {
	client := api.NewDevicePluginClient(p.conn)
	before, err := timed(func() error { return nothing(ctx, client) })
	if err != nil {
		return err
	}
	for range turn {
		took, err := timed(func() error { return do(ctx, client) })
		if err != nil {
			return err
		}
		after, err := timed(func() error { return nothing(ctx, client) })
		if err != nil {
			return err
		}
		t.took = append(t.took, took)
		t.above = append(t.above, took-(before+after)/2)
		before = after
	}
	return nil
}

func timed(do func() error) (time.Duration, error) {
	began := time.Now()
	err := do()
	return time.Since(began), err
}
