package main

import (
	"context"
	"fmt"
	"os/exec"
	"time"
)

// startCount is how often each plugin is started.
const startCount = 30

// starts measures how soon a plugin is of use, beside what any start of gpucdi takes.
func (b *bench) starts(ctx context.Context) error {
	var ours, oursOfAll, nvidia, bare []time.Duration
	for range startCount {
		for _, s := range []struct {
			command server
			took    *[]time.Duration
		}{{b.agent, &ours}, {b.nvidia, &nvidia}, {b.agentOfAll, &oursOfAll}} {
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
		bare = append(bare, took)
	}
	version := typical(bare)
	b.pluginTable.add("start to first ListAndWatch", typical(ours).with(", gpucdi version: %s", version.text), typical(nvidia), "0.6x")
	b.pluginTable.add("start, all features", typical(oursOfAll), typical(nvidia), "")
	return nil
}
