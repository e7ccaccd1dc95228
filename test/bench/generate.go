package main

import (
	"context"
	"fmt"
	"time"

	"github.com/gpucdi/gpucdi/test/nvidia"
)

// generateCount is how often each spec is generated.
const generateCount = 30

// generates measures how long a person waits for a CDI spec of eight GPUs.
func (b *bench) generates(ctx context.Context) error {
	n := b.nodes.eight
	ns, err := nvidia.NewNamespace(n.root, nil)
	if err != nil {
		return err
	}
	defer ns.Close()
	var ours, oursOfAll, theirs []time.Duration
	for range generateCount {
		for _, g := range []struct {
			command []string
			took    *[]time.Duration
		}{{b.generate(n, standard), &ours}, {b.nvidiaGenerate(n), &theirs}, {b.generate(n, everything), &oursOfAll}} {
			cmd := n.command(ctx, g.command...)
			took, err := timed(func() error { return ns.Run(cmd) })
			if err != nil {
				return fmt.Errorf("%s: %w", cmd, err)
			}
			*g.took = append(*g.took, took)
		}
	}
	b.toolkitTable.add("generate, 8 GPUs", typical(ours), typical(theirs), "0.5x")
	b.toolkitTable.add("generate, 8 GPUs, all features", typical(oursOfAll), typical(theirs), "0.5x")
	return nil
}
