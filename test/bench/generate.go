package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"time"
)

// generateCount is how often a spec is generated.
const generateCount = 30

// generates measures how long a person waits for a CDI spec of eight GPUs.
func (b *bench) generates(ctx context.Context) error {
	for _, g := range []struct{ what, features, aim, nvidia string }{
		{"generate, 8 GPUs", "compute,utility", "14 ms", ""},
		{"generate, 8 GPUs, all features", everything, "14 ms", "28 ms"},
	} {
		var took []time.Duration
		for range generateCount {
			cmd := exec.CommandContext(ctx, b.product, "generate", "--host-root", b.nodes.eight.root, "--features", g.features)
			cmd.Env = append(os.Environ(), b.nodes.eight.driver.Env("")...)
			t, err := timed(cmd.Run)
			if err != nil {
				return fmt.Errorf("generating a spec: %w", err)
			}
			took = append(took, t)
		}
		b.table.add(g.what, millis(median(took)), g.aim, g.nvidia)
	}
	return nil
}
