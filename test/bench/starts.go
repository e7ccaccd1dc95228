package main

import (
	"context"
	"fmt"
	"os/exec"
	"time"
)

// startCount is the number of starts of each plugin.
const startCount = 30

// starts measures the time from the start of each plugin to its first device list, and for comparison the run time of
// "gpucdi version", which is mostly the start of the process.
func (b *bench) starts(ctx context.Context) error {
	var ours, oursAll, nvidia, version []time.Duration
	for range startCount {
		for _, s := range []struct {
			command server
			took    *[]time.Duration
		}{{b.agent, &ours}, {b.nvidia, &nvidia}, {b.agentAll, &oursAll}} {
			p, err := b.nodes.eight.serve(ctx, s.command)
			if err != nil {
				return err
			}
			*s.took = append(*s.took, p.took)
			if err := p.stop(); err != nil {
				return err
			}
		}
		took, err := timed(exec.CommandContext(ctx, b.gpucdi, "version").Run)
		if err != nil {
			return fmt.Errorf("running gpucdi version: %w", err)
		}
		version = append(version, took)
	}
	b.pluginTable.add("start to first ListAndWatch", typical(ours).with(", gpucdi version: %s", typical(version).text), typical(nvidia), ratio(0.6)).summarize("plugin start to its first device list")
	b.pluginTable.add("start, all features", typical(oursAll), typical(nvidia), none)
	return nil
}
