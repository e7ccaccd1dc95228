package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	api "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

const (
	// settle is the time from the start of the plugins to the first measurement. It includes gpucdi's first NVML probes.
	settle = 10 * time.Second
	// idle is the duration of the measurement without calls, and of the measurement with scrapes of gpucdi.
	idle = 30 * time.Second
	// scrapeInterval is the time between two scrapes.
	scrapeInterval = 15 * time.Second
	// load is the number of calls to each plugin before the last measurement.
	load = 3000
)

// live measures memory and idle CPU time of both plugins at the same time.
func (b *bench) live(ctx context.Context) (err error) {
	p, err := b.serveBoth(ctx, b.nodes.eight)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, p.stop()) }()
	stop, err := listenPods(ctx, p.ours)
	if err != nil {
		return err
	}
	defer stop()
	var moments []moment
	for _, do := range []func() error{
		func() error { return sleep(ctx, settle) },
		func() error { return sleep(ctx, idle) },
		func() error { return p.ours.scrapedWhileIdle(ctx) },
		func() error { return errors.Join(p.ours.callRepeatedly(ctx), p.nvidia.callRepeatedly(ctx)) },
	} {
		if err := do(); err != nil {
			return err
		}
		m, err := p.measure()
		if err != nil {
			return err
		}
		moments = append(moments, m)
	}
	started, idled, scraped, loaded := moments[0], moments[1], moments[2], moments[3]
	add := b.pluginTable.add
	add("resident after start", started.ours.memory.figure(), started.nvidia.memory.figure(), ratio(0.7)).summarize("plugin memory")
	add(fmt.Sprintf("resident, scraped every %s", scrapeInterval), scraped.ours.memory.figure(), figure{}, none)
	add(fmt.Sprintf("resident after %d calls", load), loaded.ours.memory.figure(), loaded.nvidia.memory.figure(), ratio(0.7))
	add(fmt.Sprintf("idle for %s", idle),
		idled.ours.since(started.ours.usage).figure(idle), idled.nvidia.since(started.nvidia.usage).figure(idle), none)
	add(fmt.Sprintf("idle for %s, scraped every %s", idle, scrapeInterval),
		scraped.ours.since(idled.ours.usage).figure(idle), figure{}, none)
	return nil
}

// state is the memory usage of a plugin, and its CPU usage since the start.
type state struct {
	memory
	usage
}

// moment is the state of both plugins at the same time.
type moment struct{ ours, nvidia state }

func (p pair) measure() (moment, error) {
	ours, errOurs := p.ours.measure()
	nvidia, errNvidia := p.nvidia.measure()
	return moment{ours, nvidia}, errors.Join(errOurs, errNvidia)
}

func (p *plugin) measure() (state, error) {
	pids, err := processesOf(p.cmd.Process.Pid)
	if err != nil {
		return state{}, err
	}
	m, errMemory := memoryOf(pids)
	u, errUsage := usageOf(pids)
	return state{m, u}, errors.Join(errMemory, errUsage)
}

// scrapedWhileIdle scrapes the agent as Prometheus does.
func (p *plugin) scrapedWhileIdle(ctx context.Context) error {
	for range idle / scrapeInterval {
		if err := errors.Join(sleep(ctx, scrapeInterval), p.scrape(ctx)); err != nil {
			return err
		}
	}
	return nil
}

// callRepeatedly makes the calls of a kubelet that admits pods.
func (p *plugin) callRepeatedly(ctx context.Context) error {
	client := api.NewDevicePluginClient(p.conn)
	for range load / 2 {
		for _, do := range []request{prefer(4, p.devices), allocate(p.devices[4:])} {
			if err := do(ctx, client); err != nil {
				return err
			}
		}
	}
	return nil
}

func sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}
