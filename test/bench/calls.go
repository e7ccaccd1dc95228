package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	api "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

const (
	// turn is the number of calls to one plugin before the turn of the other plugin. It is more than one, since the
	// first call after a pause is slower.
	turn = 10
	// manyTurns is the number of turns of each plugin; fewTurns is for calls that are slow with NVIDIA's plugin.
	manyTurns, fewTurns = 300, 30
)

// A request calls a plugin once.
type request func(context.Context, api.DevicePluginClient) error

// A call is a request to measure, with the name and the target of its row.
type call struct {
	name   string
	do     request
	target target
	short  string // name in the summary
}

// empty is a call with a constant response, which takes only the time of gRPC.
func empty(ctx context.Context, plugin api.DevicePluginClient) error {
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
			return fmt.Errorf("%d devices preferred, want %d", got, size)
		}
		return nil
	}
}

// eight measures the calls on a node with 8 GPUs.
func (b *bench) eight(ctx context.Context) error {
	return b.calls(ctx, b.nodes.eight, manyTurns, func(ids []string) []call {
		return []call{
			{name: "empty call", do: empty},
			{"Allocate, 1 GPU", allocate(ids[:1]), atMost("+10 µs", 10*time.Microsecond), "Allocate, 1 of 8 GPUs, beyond an empty call"},
			{"Allocate, 8 GPUs", allocate(ids), atMost("+10 µs", 10*time.Microsecond), ""},
			{"GetPreferredAllocation, 4 of 8", prefer(4, ids), atMost("+100 µs", 100*time.Microsecond), ""},
		}
	})
}

// sixteen measures GetPreferredAllocation, whose duration grows with the number of GPUs, on a node with 16 GPUs.
func (b *bench) sixteen(ctx context.Context) error {
	return b.calls(ctx, b.nodes.sixteen, fewTurns, func(ids []string) []call {
		return []call{{"GetPreferredAllocation, 8 of 16", prefer(8, ids), atMost("+100 µs", 100*time.Microsecond),
			"GetPreferredAllocation, 8 of 16 GPUs, beyond an empty call"}}
	})
}

// times are the durations of a call, and their differences from the mean of the empty calls right before and after it.
type times struct{ total, net []time.Duration }

// add adds the duration of a call and of the empty calls before and after it.
func (t *times) add(before, took, after time.Duration) {
	t.total = append(t.total, took)
	t.net = append(t.net, took-(before+after)/2)
}

func (t *times) figure() figure {
	return difference(t.net, micros).with(", %s in total", micros(median(t.total)))
}

// calls starts both plugins on a node, and measures the calls that callsFor returns for the IDs of its devices.
func (b *bench) calls(ctx context.Context, n *node, turns int, callsFor func(ids []string) []call) (err error) {
	p, err := b.serveBoth(ctx, n)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, p.stop()) }()
	return b.callBoth(ctx, p, turns, callsFor(p.ours.devices))
}

// callBoth makes each call to both plugins in turn, and adds a row for it.
func (b *bench) callBoth(ctx context.Context, p pair, turns int, calls []call) error {
	for _, c := range calls {
		var ours, nvidia times
		for range turns {
			err := errors.Join(p.ours.repeat(ctx, c.do, &ours), p.nvidia.repeat(ctx, c.do, &nvidia))
			if err != nil {
				return fmt.Errorf("%s: %w", c.name, err)
			}
		}
		b.pluginTable.add(c.name, ours.figure(), nvidia.figure(), c.target).summarize(c.short)
	}
	return nil
}

// repeat makes a call for one turn, with empty calls before and after each.
func (p *plugin) repeat(ctx context.Context, do request, t *times) error {
	client := api.NewDevicePluginClient(p.conn)
	before, err := timed(func() error { return empty(ctx, client) })
	if err != nil {
		return err
	}
	for range turn {
		took, err := timed(func() error { return do(ctx, client) })
		if err != nil {
			return err
		}
		after, err := timed(func() error { return empty(ctx, client) })
		if err != nil {
			return err
		}
		t.add(before, took, after)
		before = after
	}
	return nil
}

func timed(do func() error) (time.Duration, error) {
	start := time.Now()
	err := do()
	return time.Since(start), err
}
