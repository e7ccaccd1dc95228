package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"
	cdi "tags.cncf.io/container-device-interface/specs-go"

	"github.com/gpucdi/gpucdi/test/container"
	"github.com/gpucdi/gpucdi/test/node/images"
	"github.com/gpucdi/gpucdi/test/node/tools"
	"github.com/gpucdi/gpucdi/test/nvidia"
	"github.com/gpucdi/gpucdi/test/simdriver"
)

// containerCount is how often each container is run.
const containerCount = 60

// containers measures what a GPU adds to the life of a container that runs /bin/true, with the
// features that it gets by default, with all, and with NVIDIA's spec and the hooks that it names.
func (b *bench) containers(ctx context.Context) (err error) {
	m, err := container.Start(ctx, container.Config{
		Dir: filepath.Join(b.dir, "box"), Profile: simdriver.H100x8(), Tools: []tools.Tool{tools.NVIDIAToolkit},
	})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, m.Close()) }()
	if err := forbidDeviceFiles(m); err != nil {
		return err
	}
	plain, err := bundle(ctx, m)
	if err != nil {
		return err
	}
	ours, err := withGPU(ctx, m, gpucdiSpec(standard))
	if err != nil {
		return err
	}
	oursOfAll, err := withGPU(ctx, m, gpucdiSpec(everything))
	if err != nil {
		return err
	}
	theirs, err := withGPU(ctx, m, nvidiaSpec)
	if err != nil {
		return err
	}
	if err := runInTurn(ctx, m, []*sample{plain, ours, theirs, oursOfAll}); err != nil {
		return err
	}
	name := fmt.Sprintf("container with 1 GPU, runc (%s without)", typical(plain.took).text)
	b.toolkitTable.add(name, ours.figure(plain), theirs.figure(plain), "0.14x")
	b.toolkitTable.add("container with 1 GPU, all features", oursOfAll.figure(plain), theirs.figure(plain), "")
	return nil
}

// sample is a container that is run again and again.
type sample struct {
	bundle *container.Bundle
	brings string // what its devices add to its spec
	took   []time.Duration
}

func (s *sample) figure(plain *sample) figure {
	var above []time.Duration
	for i, took := range s.took {
		above = append(above, took-plain.took[i])
	}
	return beyond(above, millis).with(" for %s", s.brings)
}

// runInTurn begins each round with another container.
func runInTurn(ctx context.Context, m *container.Machine, samples []*sample) error {
	for i := range containerCount {
		for j := range samples {
			s := samples[(i+j)%len(samples)]
			took, err := timed(func() error {
				_, err := m.Output(ctx, string(container.Runc), "run", "--bundle", s.bundle.Dir, "bench")
				return err
			})
			if err != nil {
				return err
			}
			s.took = append(s.took, took)
		}
	}
	return nil
}

// A generator writes the CDI spec of the machine.
type generator func(context.Context, *container.Machine) error

func gpucdiSpec(features string) generator {
	return func(ctx context.Context, m *container.Machine) error {
		return m.Generate(ctx, "--features", features)
	}
}

// nvidiaSpec is NVIDIA's. It has no numbers of the device nodes: who applies it is to look at them,
// which here is not done in the box.
func nvidiaSpec(ctx context.Context, m *container.Machine) error {
	said, err := m.Output(ctx, "nvidia-ctk", "cdi", "generate", "--format=json", "--feature-flag="+nvidia.NoSandboxUtils)
	if err != nil {
		return err
	}
	var spec cdi.Spec
	if err := json.Unmarshal([]byte(said), &spec); err != nil {
		return fmt.Errorf("reading NVIDIA's spec: %w", err)
	}
	edits := []*cdi.ContainerEdits{&spec.ContainerEdits}
	for i := range spec.Devices {
		edits = append(edits, &spec.Devices[i].ContainerEdits)
	}
	for _, e := range edits {
		for _, node := range e.DeviceNodes {
			node.HostPath = m.Path(node.Path)
		}
	}
	text, err := json.Marshal(spec)
	if err != nil {
		return fmt.Errorf("encoding NVIDIA's spec: %w", err)
	}
	return os.WriteFile(m.Path(container.SpecFile), text, 0o644)
}

// forbidDeviceFiles makes the driver one that nobody may make device nodes by. NVIDIA's hook has to
// see to that otherwise, by a mount into the container's /proc, where there is no simulated driver.
func forbidDeviceFiles(m *container.Machine) error {
	return os.WriteFile(m.Path("/proc/driver/nvidia/params"), []byte("ModifyDeviceFiles: 0\n"), 0o444)
}

// withGPU makes a container with a GPU, by the spec of a generator.
func withGPU(ctx context.Context, m *container.Machine, generate generator) (*sample, error) {
	if err := generate(ctx, m); err != nil {
		return nil, err
	}
	return bundle(ctx, m, "nvidia.com/gpu=0")
}

// bundle makes a container that runs /bin/true.
func bundle(ctx context.Context, m *container.Machine, devices ...string) (*sample, error) {
	plain, err := m.Spec(ctx)
	if err != nil {
		return nil, err
	}
	spec, err := m.Spec(ctx, devices...)
	if err != nil {
		return nil, err
	}
	spec.Process.Args = []string{"/bin/true"}
	made, err := m.Bundle(ctx, images.Debian12, spec)
	return &sample{bundle: made, brings: fmt.Sprintf("%d mounts, %d nodes, %d hooks", len(spec.Mounts)-len(plain.Mounts),
		len(spec.Linux.Devices)-len(plain.Linux.Devices), hookCount(spec.Hooks))}, err
}

func hookCount(h *specs.Hooks) int {
	if h == nil {
		return 0
	}
	//nolint:staticcheck // Prestart is deprecated, not gone.
	all := slices.Concat(h.Prestart, h.CreateRuntime, h.CreateContainer, h.StartContainer, h.Poststart, h.Poststop)
	return len(all)
}
