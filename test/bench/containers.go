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

// containers measures what a GPU adds to the life of a container that runs /bin/true.
func (b *bench) containers(ctx context.Context) (err error) {
	m, err := container.Start(ctx, container.Config{Dir: filepath.Join(b.dir, "box"), Profile: simdriver.H100x8()})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, m.Close()) }()
	if err := m.Generate(ctx); err != nil {
		return err
	}
	without, _, err := bundle(ctx, m)
	if err != nil {
		return err
	}
	with, mounts, err := bundle(ctx, m, "nvidia.com/gpu=0")
	if err != nil {
		return err
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
				return fmt.Errorf("running a container: %w", err)
			}
		}
		plain = append(plain, took[without])
		difference = append(difference, took[with]-took[without])
	}
	value := fmt.Sprintf("%s for %d mounts (%s without)", above(median(difference), millis), mounts, millis(median(plain)))
	b.table.add("container with 1 GPU, runc", value, "+6 ms", "+44 ms for 51 mounts, 7 hooks")
	return nil
}

// bundle makes a bundle that runs /bin/true, and tells how many mounts its devices bring.
func bundle(ctx context.Context, m *container.Machine, devices ...string) (*container.Bundle, int, error) {
	plain, err := m.Spec(ctx)
	if err != nil {
		return nil, 0, err
	}
	spec, err := m.Spec(ctx, devices...)
	if err != nil {
		return nil, 0, err
	}
	spec.Process.Args = []string{"/bin/true"}
	made, err := m.Bundle(ctx, images.Debian12, spec)
	return made, len(spec.Mounts) - len(plain.Mounts), err
}
