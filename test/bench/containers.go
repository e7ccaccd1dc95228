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

// containerCount is the number of runs of each container.
const containerCount = 60

// containers measures how much longer a container that runs /bin/true takes with a GPU than without: with the default
// features, with all features, and with NVIDIA's spec and its hooks. It also measures the time that video, a default
// feature, adds.
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
	withoutVideo, err := withGPU(ctx, m, gpucdiSpec("compute,utility"))
	if err != nil {
		return err
	}
	ours, err := withGPU(ctx, m, gpucdiSpec(standard))
	if err != nil {
		return err
	}
	oursAll, err := withGPU(ctx, m, gpucdiSpec(everything))
	if err != nil {
		return err
	}
	nvidia, err := withGPU(ctx, m, nvidiaSpec)
	if err != nil {
		return err
	}
	if err := runInTurn(ctx, m, []*sample{plain, ours, nvidia, oursAll, withoutVideo}); err != nil {
		return err
	}
	name := fmt.Sprintf("container with 1 GPU, runc (%s without)", typical(plain.took).text)
	b.toolkitTable.add(name, ours.figure(plain), nvidia.figure(plain), ratio(0.14)).summarize("container start with 1 GPU, beyond one without")
	b.toolkitTable.add("container with 1 GPU, beyond one without video", ours.beyond(withoutVideo), figure{}, atMost("1.5 ms", 1500*time.Microsecond))
	b.toolkitTable.add("container with 1 GPU, all features", oursAll.figure(plain), nvidia.figure(plain), none)
	return nil
}

// sample is a container that is run repeatedly.
type sample struct {
	bundle *container.Bundle
	edits  string          // counts of the mounts, device nodes and hooks that its devices add
	took   []time.Duration // by run
}

// beyond returns how much longer the container takes than another.
func (s *sample) beyond(other *sample) figure {
	var added []time.Duration
	for i, took := range s.took {
		added = append(added, took-other.took[i])
	}
	return difference(added, millis)
}

// figure returns how much longer the container takes than plain, with the edits of its devices.
func (s *sample) figure(plain *sample) figure { return s.beyond(plain).with(" for %s", s.edits) }

// runInTurn runs the containers in turn. Each round begins with another container.
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

// A generator writes the machine's CDI spec to container.SpecFile.
type generator func(context.Context, *container.Machine) error

func gpucdiSpec(features string) generator {
	return func(ctx context.Context, m *container.Machine) error {
		return m.Generate(ctx, "--features", features)
	}
}

// nvidiaSpec is the generator of NVIDIA's toolkit. Its spec has no device numbers, so the CDI library reads the numbers
// from the host paths, which must be paths outside the box.
func nvidiaSpec(ctx context.Context, m *container.Machine) error {
	out, err := m.Output(ctx, "nvidia-ctk", "cdi", "generate", "--format=json", "--feature-flag="+nvidia.NoSandboxUtils)
	if err != nil {
		return err
	}
	var spec cdi.Spec
	if err := json.Unmarshal([]byte(out), &spec); err != nil {
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

// forbidDeviceFiles sets the driver parameter ModifyDeviceFiles to 0. Otherwise NVIDIA's hook sets it with a mount in
// the container's /proc, which does not contain the simulated driver.
func forbidDeviceFiles(m *container.Machine) error {
	return os.WriteFile(m.Path("/proc/driver/nvidia/params"), []byte("ModifyDeviceFiles: 0\n"), 0o444)
}

// withGPU creates a container with a GPU from the spec of a generator.
func withGPU(ctx context.Context, m *container.Machine, generate generator) (*sample, error) {
	if err := generate(ctx, m); err != nil {
		return nil, err
	}
	return bundle(ctx, m, "nvidia.com/gpu=0")
}

// bundle creates a container that runs /bin/true.
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
	b, err := m.Bundle(ctx, images.Debian12, spec)
	return &sample{bundle: b, edits: fmt.Sprintf("%d mounts, %d nodes, %d hooks", len(spec.Mounts)-len(plain.Mounts),
		len(spec.Linux.Devices)-len(plain.Linux.Devices), hookCount(spec.Hooks))}, err
}

func hookCount(h *specs.Hooks) int {
	if h == nil {
		return 0
	}
	//nolint:staticcheck // Prestart is deprecated, but still used.
	all := slices.Concat(h.Prestart, h.CreateRuntime, h.CreateContainer, h.StartContainer, h.Poststart, h.Poststop)
	return len(all)
}
