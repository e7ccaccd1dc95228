package devicemanager

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/gpucdi/gpucdi/test/simdriver"
)

// migFault is a fault or a change of GPUs in MIG mode while the agent runs.
type migFault struct {
	name    string
	inject  func(n *node) error
	restore func(n *node) error // nil if the fault clears without intervention

	// Counts that differ from a100s while the fault holds, and after restore. Released devices stay in the capacity for a
	// minute, so capacities are minimums.
	meanwhile, after resourceCounts
}

func migFaults() []migFault {
	const faulty = 0 // index of a GPU with seven 1g.5gb
	xid := func(gi, ci int) func(n *node) error {
		return func(n *node) error {
			return n.driver.Update(func(s *simdriver.State) error {
				s.Raise(simdriver.Event{GPU: s.GPUs[faulty].UUID, Type: simdriver.EventXID, Data: 9999, GI: gi, CI: ci})
				return nil
			})
		}
	}
	partition := func(gpu int, profiles ...string) func(n *node) error {
		return func(n *node) error { return n.driver.Partition(n.uuids()[gpu], profiles...) }
	}
	unpartition := func(gpu int) func(n *node) error {
		return func(n *node) error { return n.driver.Unpartition(n.uuids()[gpu]) }
	}
	return []migFault{
		{
			name:      "an XID of one MIG device",
			inject:    xid(9, 0),
			meanwhile: resourceCounts{small: "15 of 16"},
		},
		{
			name:      "an XID of a GPU with seven MIG devices",
			inject:    xid(simdriver.NotSupported, simdriver.NotSupported),
			meanwhile: resourceCounts{small: "9 of 16"},
		},
		{
			name:      "a GPU with seven MIG devices is lost and returns",
			inject:    func(n *node) error { return n.driver.Lose(n.uuids()[faulty]) },
			restore:   func(n *node) error { return n.driver.Return(n.uuids()[faulty]) },
			meanwhile: resourceCounts{small: "9 of 16"},
		},
		{
			name:      "MIG mode is enabled, the GPU partitioned, and MIG mode disabled",
			inject:    partition(5, "7g.40gb"),
			restore:   unpartition(5),
			meanwhile: resourceCounts{gpuResource: "2 of 3", "nvidia.com/mig-7g.40gb": "1 of 1"},
			after:     resourceCounts{"nvidia.com/mig-7g.40gb": "0 of 0"},
		},
		{
			name:      "a GPU is repartitioned from two MIG devices to three, and back",
			inject:    partition(3, "2g.10gb", "2g.10gb", "2g.10gb"),
			restore:   partition(3, "3g.20gb", "3g.20gb"),
			meanwhile: resourceCounts{middle: "4 of 4", large: "1 of 3"},
		},
		{
			name:      "a GPU in MIG mode is partitioned, and its MIG devices are destroyed",
			inject:    partition(4, "1g.5gb", "2g.10gb"),
			restore:   partition(4),
			meanwhile: resourceCounts{small: "17 of 17", middle: "2 of 2"},
		},
	}
}

// TestMIGFaults logs detection and recovery times as rows of docs/health.md, like testFaults.
func TestMIGFaults(t *testing.T) {
	t.Parallel()
	document := readHealthDoc(t)
	for _, f := range migFaults() {
		row := fmt.Sprintf("| %s | %s |", f.name, f.meanwhile)
		document.requireRow(t, row)
		t.Run(f.name, func(t *testing.T) {
			t.Parallel()
			n, k := startMIGNode(t, "mixed")
			k.awaitResources(t, a100s())
			_, bystander := n.admitMIG(t, k, "bystander", small, 1) // on GPU 2, which has the fewest free 1g.5gb
			injected := time.Now()
			if err := f.inject(n); err != nil {
				t.Fatal(err)
			}
			k.awaitResources(t, a100s().with(f.meanwhile))
			detected := time.Since(injected)
			restored := time.Now()
			if f.restore != nil {
				if err := f.restore(n); err != nil {
					t.Fatal(err)
				}
			}
			k.awaitResources(t, a100s().with(f.after))
			t.Logf("%s %s | %s |", row, detected.Round(time.Millisecond), time.Since(restored).Round(time.Millisecond))
			_, others := n.admitMIG(t, k, "after", small, 15)
			disjoint(t, bystander, others)
			n.admitMIG(t, k, "after-large", large, 3)
		})
	}
}

// An XID that names the instances of a MIG device is a fault of that device only.
func TestXIDOfOneMIGDevice(t *testing.T) {
	t.Parallel()
	n, k := startMIGNode(t, "mixed")
	n.configure(t, "mig: {strategy: mixed}", longQuiet)
	k.awaitResources(t, a100s())
	g := n.driver.State().GPUs[1]
	faulty := g.MIG[4]
	if err := n.driver.Update(func(s *simdriver.State) error {
		s.Raise(simdriver.Event{GPU: g.UUID, Type: simdriver.EventXID, Data: 9999, GI: faulty.GPUInstance, CI: faulty.CI})
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	k.awaitResources(t, a100s().with(resourceCounts{small: "15 of 16"}))
	healthy := k.allocatable()[string(small)]
	if _, ok := healthy[faulty.UUID]; ok || len(healthy) != 15 {
		t.Errorf("after an XID of %s: got healthy devices %v, want all others", faulty.UUID, healthy)
	}
	if s := n.awaitDevice(t, faulty.UUID, "xid_9999"); s.GPU != g.UUID || s.Resource != string(small) {
		t.Errorf("got status %+v", s)
	}
	n.awaitMetric(t, fmt.Sprintf(`gpucdi_devices{health="unhealthy",reason="xid_9999",resource=%q} 1`, small))
	row := regexp.MustCompile(faulty.UUID + ` +NVIDIA A100-SXM4-40GB MIG 1g\.5gb +4\.8 GiB `)
	if table := n.statusText(t, "-o", "wide"); !row.MatchString(table) {
		t.Errorf("got status table\n%s", table)
	}
	k.awaitResources(t, a100s())
}

// A GPU whose properties cannot be read is unhealthy, and so are its MIG devices. They stay in the CDI spec, so
// containers that hold them can restart.
func TestPartialRead(t *testing.T) {
	t.Parallel()
	for _, call := range []string{"nvmlDeviceGetMinorNumber", "nvmlDeviceGetPciInfo", "nvmlDeviceGetName", "nvmlDeviceGetMigMode",
		"nvmlDeviceGetMaxMigDeviceCount", "nvmlDeviceGetMigDeviceHandleByIndex"} {
		t.Run(call, func(t *testing.T) {
			t.Parallel()
			n, k := startMIGNode(t, "mixed")
			k.awaitResources(t, a100s())
			pod := podWith("part", large, 2)
			if err := k.admit(pod); err != nil {
				t.Fatal(err)
			}
			held := n.usableMIGDevices(t, k, pod)
			if err := n.driver.InjectFault(simdriver.Fault{GPU: n.uuids()[3], Func: call, Return: unknownError}); err != nil {
				t.Fatal(err)
			}
			if err := n.process.Process.Signal(syscall.SIGHUP); err != nil {
				t.Fatal(err)
			}
			n.awaitDevice(t, held[0], "unreadable")
			if now := n.usableMIGDevices(t, k, pod); !slices.Equal(now, held) {
				t.Errorf("the restarted container can use %v, want %v", now, held)
			}
			if err := n.driver.ClearFaults(); err != nil {
				t.Fatal(err)
			}
			k.awaitResources(t, a100s())
		})
	}
}

// A MIG device whose capability is not in mig-minors is advertised as unhealthy and is not in the CDI spec. It recovers
// when mig-minors has the capability.
func TestMissingCapability(t *testing.T) {
	t.Parallel()
	n := newNode(t, simdriver.A100MIG())
	file := filepath.Join(n.root, "proc/driver/nvidia-caps/mig-minors")
	complete, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	incomplete := bytes.Replace(complete, []byte("gpu0/gi9/ci0/access"), []byte("gpu0/gi9/ci0/other"), 1)
	if err := os.WriteFile(file, incomplete, 0o444); err != nil {
		t.Fatal(err)
	}
	n.configure(t, "mig: {strategy: mixed}")
	k := startKubelet(t, n.kubeletDir, 2)
	n.startAgent(t)
	k.awaitResources(t, a100s().with(resourceCounts{small: "15 of 16"}))
	_, allocated := n.admitMIG(t, k, "others", small, 15)
	for _, m := range n.driver.State().GPUs[0].MIG {
		if m.GPUInstance != 9 {
			continue
		}
		disjoint(t, allocated, []string{m.UUID})
		if found, failed := n.doctor(t); !failed || !strings.Contains(found["CDI edits"], m.UUID) {
			t.Errorf("doctor reports %q, want the MIG device %s", found["CDI edits"], m.UUID)
		}
		for _, spec := range n.specs(t) {
			if bytes.Contains([]byte(spec), []byte(m.UUID)) {
				t.Errorf("the CDI spec has %s, which lacks a capability", m.UUID)
			}
		}
	}
	if err := os.WriteFile(file, complete, 0o444); err != nil {
		t.Fatal(err)
	}
	t.Logf("recovered %s after the capability appeared", k.awaitResources(t, a100s()).Round(time.Millisecond))
}
