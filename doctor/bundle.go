package doctor

import (
	"archive/tar"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"path"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/gpucdi/gpucdi/cdi"
	"github.com/gpucdi/gpucdi/gpu"
	"github.com/gpucdi/gpucdi/internal/host"
	"github.com/gpucdi/gpucdi/kubelet"
	"github.com/gpucdi/gpucdi/status"
)

const (
	// bundleFileLimit bounds each file of a bundle, in bytes.
	bundleFileLimit = 8 << 20
	// maxBundledSpecs bounds the number of CDI specs in a bundle. The agent writes one for the GPUs, and one for each
	// device class, each feature with variants, and each claim or replica whose compute time is limited.
	maxBundledSpecs = 16
)

// Bundle runs all checks and writes a gzipped tar archive with the data for a bug report. The archive contains no
// environment variables, tokens or manifests of pods. Its errors.txt lists the files that could not be collected.
// Bundle returns an error only if writing to w fails or ctx ends.
func Bundle(ctx context.Context, n Node, w io.Writer) error {
	findings := []Finding{}
	e := newExamination(ctx, n)
	e.run(ctx, func(f Finding) { findings = append(findings, f) })
	compressed := gzip.NewWriter(w)
	b := bundle{archive: tar.NewWriter(compressed), now: time.Now()}
	b.json("doctor.json", map[string]any{"findings": findings}, nil)
	b.json("status.json", e.status, e.statusErr)
	if e.snapshot != nil {
		b.json("list.json", e.snapshot.Inventory, nil)
	} else {
		b.fail("list.json", errors.New("the driver was not read; see NVML in doctor.json"))
	}
	metrics, err := status.FetchMetrics(ctx, n.Address)
	b.add("metrics.txt", metrics, err)
	b.json("versions.json", e.versions(), nil)
	if e.containerRuntime.Name != "" {
		b.json("runtime.json", e.containerRuntime, nil)
	} else {
		b.fail("runtime.json", errors.New("the container runtime was not detected; see runtime in doctor.json"))
	}
	if n.ConfigFile != "" {
		text, err := host.ReadFile(n.ConfigFile, bundleFileLimit)
		b.add("config.yaml", text, err)
	}
	b.specs(n.CDIDir)
	checkpoint, err := kubelet.ReadCheckpoint(filepath.Join(n.KubeletDir, "device-plugins"))
	b.json("checkpoint.json", gpuEntries(checkpoint), err)
	log, err := kernelLog(ctx, n.Root)
	b.add("kernel.log", log, err)
	return errors.Join(ctx.Err(), b.close(), compressed.Close())
}

// versions returns the versions of the components of the node that are known.
func (e *examination) versions() map[string]string {
	versions := map[string]string{
		"gpucdi": e.Version, "agent": e.status.Version, "architecture": runtime.GOARCH,
		"runtime": strings.TrimSpace(e.containerRuntime.Name + " " + e.containerRuntime.Version),
	}
	versions["kernelModule"], _ = cdi.KernelModuleVersion(e.Root) // doctor.json has the error
	if e.snapshot != nil {
		versions["driver"], versions["cuda"] = e.snapshot.Inventory.Driver.Version, e.snapshot.Inventory.Driver.CUDA.String()
	}
	if kernel, err := e.Root.ReadFile("/proc/sys/kernel/osrelease"); err == nil {
		versions["kernel"] = strings.TrimSpace(string(kernel))
	}
	release, _ := e.Root.ReadFile("/etc/os-release") // missing in minimal systems
	for line := range strings.Lines(string(release)) {
		if name, found := strings.CutPrefix(line, "PRETTY_NAME="); found {
			versions["os"] = strings.Trim(name, "\"\n")
		}
	}
	return versions
}

// allocation is an allocated device in the kubelet's checkpoint.
type allocation struct {
	PodUID    string `json:"podUID"`
	Container string `json:"container"`
	Resource  string `json:"resource"`
	Device    string `json:"device"`
}

// gpuEntries returns the entries of the kubelet's checkpoint for GPUs, including the devices of monitoring pods.
func gpuEntries(c kubelet.Checkpoint) any {
	isGPU := func(id string) bool {
		return strings.HasPrefix(id, "GPU-") || strings.HasPrefix(id, "MIG-") || strings.HasPrefix(id, cdi.MonitorDevice+"::")
	}
	allocations, registered := []allocation{}, map[string][]string{}
	for _, h := range c.Holders {
		if isGPU(h.Device) {
			allocations = append(allocations, allocation{h.PodUID, h.Container, h.Resource, h.Device})
		}
	}
	for resource, ids := range c.Registered {
		if len(ids) > 0 && isGPU(ids[0]) {
			registered[resource] = ids
		}
	}
	return map[string]any{"allocations": allocations, "registered": registered}
}

// bundle writes the files of an archive.
type bundle struct {
	archive *tar.Writer
	now     time.Time
	missing []string // files that could not be collected, with their errors
	err     error    // the first write error
}

// fail records why a file is missing.
func (b *bundle) fail(name string, err error) {
	b.missing = append(b.missing, name+": "+gpu.OneLine(err))
}

// add adds a file, or records the error of collecting it.
func (b *bundle) add(name string, data []byte, err error) {
	switch {
	case err != nil:
		b.fail(name, err)
	case len(data) > bundleFileLimit:
		b.fail(name, fmt.Errorf("larger than %d bytes", bundleFileLimit))
	case b.err == nil:
		b.err = b.write(name, data)
	}
}

func (b *bundle) write(name string, data []byte) error {
	header := &tar.Header{Name: path.Join("gpucdi", name), Mode: 0o600, Size: int64(len(data)), ModTime: b.now, Format: tar.FormatPAX}
	if err := b.archive.WriteHeader(header); err != nil {
		return err
	}
	_, err := b.archive.Write(data)
	return err
}

// json adds a value as a file, or records the error of collecting it.
func (b *bundle) json(name string, value any, err error) {
	if err != nil {
		b.fail(name, err)
		return
	}
	data, err := json.MarshalIndent(value, "", "  ")
	b.add(name, data, err)
}

// specs adds the CDI specs of the agent.
func (b *bundle) specs(dir string) {
	paths, _ := filepath.Glob(filepath.Join(dir, "gpucdi.dev-*.json")) // fails only for a bad pattern
	// Each claim with a limited compute time has a spec. The other specs, such as that of the GPUs, come first.
	isClaim := func(name string) bool { return strings.HasPrefix(filepath.Base(name), "gpucdi.dev-claim-") }
	paths = slices.Concat(slices.DeleteFunc(slices.Clone(paths), isClaim),
		slices.DeleteFunc(paths, func(name string) bool { return !isClaim(name) }))
	if len(paths) == 0 {
		b.fail("cdi", fmt.Errorf("no CDI specs of gpucdi in %s", dir))
	}
	for i, name := range paths {
		if i == maxBundledSpecs {
			b.fail("cdi", fmt.Errorf("more than %d specs", maxBundledSpecs))
			break
		}
		text, err := host.ReadFile(name, bundleFileLimit)
		b.add("cdi/"+filepath.Base(name), text, err)
	}
}

// close adds errors.txt and ends the archive.
func (b *bundle) close() error {
	text := strings.Join(append(b.missing, ""), "\n")
	b.add("errors.txt", []byte(text), nil)
	return errors.Join(b.err, b.archive.Close())
}
