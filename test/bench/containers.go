package main

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"github.com/gpucdi/gpucdi/test/container"
	"github.com/gpucdi/gpucdi/test/node/images"
	"github.com/gpucdi/gpucdi/test/simdriver"
)

// pairs is how often a container is run with a GPU and without one, in turn.
const pairs = 60

// everything is all features, compute and utility being the default.
const everything = "compute,utility,graphics,video,display"

// containers measures what a GPU adds to the life of a container that runs /bin/true, with the
// features that it gets by default and with all.
func (b *bench) containers(ctx context.Context) (err error) {
	m, err := container.Start(ctx, container.Config{Dir: filepath.Join(b.dir, "box"), Profile: simdriver.H100x8()})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, m.Close()) }()
	for _, c := range []struct{ what, features, aim, nvidia string }{
		{"container with 1 GPU, runc", "compute,utility", "+6 ms", "+44 ms for 51 mounts, 7 hooks"},
		{"container with 1 GPU, all features, runc", everything, "", "the same: it gives all"},
	} {
		if err := m.Generate(ctx, "--features", c.features); err != nil {
			return err
		}
		value, err := compareContainers(ctx, m)
		if err != nil {
			return err
		}
		b.table.add(c.what, value, c.aim, c.nvidia)
	}
	return nil
}

// compareContainers runs containers with and without a GPU, in turn.
func compareContainers(ctx context.Context, m *container.Machine) (string, error) {
	without, _, err := bundle(ctx, m)
	if err != nil {
		return "", err
	}
	with, added, err := bundle(ctx, m, "nvidia.com/gpu=0")
	if err != nil {
		return "", err
	}
	var plain, difference []time.Duration
	for i := range pairs {
		order := []*container.Bundle{without, with}
		if i%2 == 1 {
			order[0], order[1] = order[1], order[0]
		}
		took := map[*container.Bundle]time.Duration{}
		for _, bundle := range order {
			run := m.Command(ctx, string(container.Runc), "run", "--bundle", bundle.Dir, "bench")
			if took[bundle], err = timed(run.Run); err != nil {
				return "", fmt.Errorf("running a container: %w", err)
			}
		}
		plain = append(plain, took[without])
		difference = append(difference, took[with]-took[without])
	}
	return fmt.Sprintf("%s for %s (%s without)", above(median(difference), millis), added, millis(median(plain))), nil
}

// bundle makes a bundle that runs /bin/true, and tells what its devices bring.
func bundle(ctx context.Context, m *container.Machine, devices ...string) (*container.Bundle, string, error) {
	plain, err := m.Spec(ctx)
	if err != nil {
		return nil, "", err
	}
	spec, err := m.Spec(ctx, devices...)
	if err != nil {
		return nil, "", err
	}
	added := fmt.Sprintf("%d mounts, %d nodes", len(spec.Mounts)-len(plain.Mounts), len(spec.Linux.Devices)-len(plain.Linux.Devices))
	spec.Process.Args = []string{"/bin/true"}
	made, err := m.Bundle(ctx, images.Debian12, spec)
	return made, added, err
}
