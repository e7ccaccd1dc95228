package driver

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"fmt"
	"reflect"
	"regexp"
	"strings"
	"time"

	"github.com/gpucdi/gpucdi/gpu"
	"github.com/gpucdi/gpucdi/gpu/health"
	"github.com/gpucdi/gpucdi/internal/host"
)

// deviceTree is the directory of the device tree in sysfs. The files read here contain strings that end with a
// NUL.
const deviceTree = "/sys/firmware/devicetree/base/"

// jetsonGPUs are the GPUs by the compatible string of their module's SoC, with the names that CUDA reports.
var jetsonGPUs = map[string]struct {
	product      string
	architecture gpu.Architecture
	capability   gpu.ComputeCapability
}{
	"nvidia,tegra210": {"NVIDIA Tegra X1", "Maxwell", gpu.ComputeCapability{Major: 5, Minor: 3}},
	"nvidia,tegra186": {"NVIDIA Tegra X2", "Pascal", gpu.ComputeCapability{Major: 6, Minor: 2}},
	"nvidia,tegra194": {"Xavier", "Volta", gpu.ComputeCapability{Major: 7, Minor: 2}},
	"nvidia,tegra234": {"Orin", "Ampere", gpu.ComputeCapability{Major: 8, Minor: 7}},
	"nvidia,tegra264": {"NVIDIA Thor", "Blackwell", gpu.ComputeCapability{Major: 11, Minor: 0}},
}

// JetsonGPU returns the integrated GPU of a Jetson as far as the node's files describe it; on an error, with the
// attributes that were read before. NVML reports more attributes where it is installed.
func JetsonGPU(node host.Root) (gpu.GPU, error) {
	g := gpu.GPU{
		Minor: gpu.MinorUnknown, NUMANode: gpu.NUMAUnknown, MIG: gpu.MIGUnsupported,
		Architecture: gpu.ArchitectureUnknown, MemoryBytes: systemMemory(node),
	}
	compatible, err := node.ReadFile(deviceTree + "compatible")
	if err != nil {
		return g, fmt.Errorf("reading the model of the Jetson: %w", err)
	}
	for name := range strings.SplitSeq(string(compatible), "\x00") {
		if known, found := jetsonGPUs[name]; found {
			g.Product, g.Architecture, g.ComputeCapability = known.product, known.architecture, known.capability
		}
	}
	serial, err := node.ReadFile(deviceTree + "serial-number")
	if err != nil { // custom carrier boards may lack it
		serial, err = node.ReadFile("/etc/machine-id")
	}
	if err != nil {
		return g, fmt.Errorf("identifying the Jetson: it has no serial number and no machine ID: %w", err)
	}
	g.UUID = moduleUUID(compatible, bytes.TrimRight(serial, "\x00\n"))
	return g, nil
}

// moduleUUID returns the UUID of a GPU without an NVML UUID. It is derived from the model and the serial number of the
// module, so it is unique to the module and survives a reinstallation of the node, unless serial is the machine ID.
func moduleUUID(model, serial []byte) string {
	sum := sha256.Sum256(bytes.Join([][]byte{[]byte("gpucdi.dev/jetson"), model, serial}, []byte{0}))
	id := sum[:16]
	id[6], id[8] = id[6]&0x0f|0x80, id[8]&0x3f|0x80 // version 8 and variant of RFC 9562
	return fmt.Sprintf("GPU-%x-%x-%x-%x-%x", id[:4], id[4:6], id[6:8], id[8:10], id[10:])
}

// systemMemory returns the memory of the node in bytes, which an integrated GPU shares; 0 if it is not known.
func systemMemory(node host.Root) uint64 {
	data, err := node.ReadFile("/proc/meminfo")
	if err != nil {
		return 0
	}
	var kilobytes uint64
	for line := range strings.Lines(string(data)) {
		if _, err := fmt.Sscanf(line, "MemTotal: %d kB", &kilobytes); err == nil {
			return kilobytes << 10
		}
	}
	return 0
}

// jetsonRelease matches the first line of /etc/nv_tegra_release: "# R35 (release), REVISION: 4.1, …".
var jetsonRelease = regexp.MustCompile(`^# R([0-9]+) \(release\), REVISION: ([0-9.]+)`)

// readJetson returns the inventory of a Jetson without NVML.
func readJetson(node host.Root) (*gpu.Inventory, error) {
	g, err := JetsonGPU(node)
	if err != nil {
		return nil, err
	}
	g.Product = cmp.Or(g.Product, "Jetson")
	inv := &gpu.Inventory{Platform: gpu.Jetson, GPUs: []gpu.GPU{g}}
	if release, err := node.ReadFile("/etc/nv_tegra_release"); err == nil {
		if match := jetsonRelease.FindSubmatch(release); match != nil {
			inv.Driver.Version = fmt.Sprintf("%s.%s", match[1], match[2])
		}
	}
	return inv, nil
}

// watchJetson yields the state of a Jetson without NVML, which has no driver worker, until ctx ends, NVML is installed,
// the driver files are gone, or the config has changed. The error reports that the state cannot be read. The probes
// always succeed: faults of the GPU are found by other checks, such as those of its device nodes.
func (s *source) watchJetson(ctx context.Context) error {
	var reported Snapshot
	for {
		inv, err := readJetson(s.cfg.Node)
		if err != nil {
			s.yield(Snapshot{Err: err})
			return err
		}
		root, err := host.FindDriver(s.cfg.Node, s.cfg.DriverRoot, s.cfg.Library)
		if err != nil || root.NVML != "" {
			return nil
		}
		snapshot := Snapshot{Inventory: inv, Driver: root, Probes: Probes{inv.GPUs[0].UUID: health.Probe{}}}
		if !reflect.DeepEqual(snapshot, reported) {
			reported = snapshot
			s.yield(snapshot)
		} else {
			s.yield(snapshot.Probes)
		}
		select {
		case <-ctx.Done():
			return nil
		case s.cfg = <-s.reload:
			return nil
		case <-time.After(jitter(s.cfg.Interval)):
		}
	}
}
