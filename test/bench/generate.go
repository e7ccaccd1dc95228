package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/gpucdi/gpucdi/test/nvidia"
)

// generateCount is the number of runs of each generator.
const generateCount = 30

// generations measures the generation of a CDI spec for eight GPUs, with and without the file mig-minors: NVIDIA's
// programs spend most of their time on reading it.
func (b *bench) generations(ctx context.Context) error {
	n := b.nodes.eight
	ns, err := nvidia.NewNamespace(n.root, nil)
	if err != nil {
		return err
	}
	defer ns.Close()
	if err := b.measureGeneration(ctx, ns, "generate, 8 GPUs", "CDI spec for 8 GPUs"); err != nil {
		return err
	}
	if err := os.Remove(filepath.Join(n.root, "proc/driver/nvidia-caps/mig-minors")); err != nil {
		return err
	}
	return b.measureGeneration(ctx, ns, "generate, no mig-minors", "")
}

func (b *bench) measureGeneration(ctx context.Context, ns *nvidia.Namespace, name, short string) error {
	n := b.nodes.eight
	var ours, oursAll, nvidia []time.Duration
	for range generateCount {
		for _, g := range []struct {
			command []string
			took    *[]time.Duration
		}{{b.generate(n, standard), &ours}, {b.nvidiaGenerate(n), &nvidia}, {b.generate(n, everything), &oursAll}} {
			cmd := n.command(ctx, g.command...)
			took, err := timed(func() error { return ns.Run(cmd) })
			if err != nil {
				return fmt.Errorf("%s: %w", cmd, err)
			}
			*g.took = append(*g.took, took)
		}
	}
	b.toolkitTable.add(name, typical(ours), typical(nvidia), ratio(0.5)).summarize(short)
	b.toolkitTable.add(name+", all features", typical(oursAll), typical(nvidia), ratio(0.5))
	return nil
}
