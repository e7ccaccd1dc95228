package devicemanager

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/gpucdi/gpucdi/test/simdriver"
)

// migFault is something that happens to GPUs in MIG mode under a running agent.
type migFault struct {
	name   string
	happen func(n *node) error
	end    func(n *node) error // nil: it ends by itself

	meanwhile offer // what differs from a100s
	after     offer // what differs from a100s once it has ended
}

func migFaults() []migFault {
	const hit = 0 // the GPU, in seven parts of 1g.5gb
	xid := func(gi, ci int) func(n *node) error {
		return func(n *node) error {
			return n.driver.Update(func(s *simdriver.State) error {
				s.Raise(simdriver.Event{GPU: s.GPUs[hit].UUID, Type: simdriver.EventXID, Data: 9999, GI: gi, CI: ci})
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
			happen:    xid(9, 0),
			meanwhile: offer{small: "15 of 16"},
		},
		{
			name:      "an XID of a GPU in seven parts",
			happen:    xid(simdriver.NotSupported, simdriver.NotSupported),
			meanwhile: offer{small: "9 of 16"},
		},
		{
			name:      "a GPU in seven parts is lost and returns",
			happen:    func(n *node) error { return n.driver.Lose(n.uuids()[hit]) },
			end:       func(n *node) error { return n.driver.Return(n.uuids()[hit]) },
			meanwhile: offer{small: "9 of 16"},
		},
		{
			name:      "a GPU is put into MIG mode and cut, and taken out of it",
			happen:    partition(5, "7g.40gb"),
			end:       unpartition(5),
			meanwhile: offer{gpuResource: "2 of 3", "nvidia.com/mig-7g.40gb": "1 of 1"},
			after:     offer{"nvidia.com/mig-7g.40gb": "0 of 0"},
		},
		{
			name:      "a GPU in two parts is cut in three, and in two again",
			happen:    partition(3, "2g.10gb", "2g.10gb", "2g.10gb"),
			end:       partition(3, "3g.20gb", "3g.20gb"),
			meanwhile: offer{middle: "4 of 4", large: "1 of 3"},
		},
		{
			name:      "a GPU that was not cut is cut, and its parts are destroyed",
			happen:    partition(4, "1g.5gb", "2g.10gb"),
			end:       partition(4),
			meanwhile: offer{small: "17 of 17", middle: "2 of 2"},
		},
	}
}

// TestMIGFaults logs, as TestFaults does, how long it was until the kubelet knew,
// and until all was well again. docs/health.md has what it logs.
func TestMIGFaults(t *testing.T) {
	document := readHealth(t)
	for _, f := range migFaults() {
		row := fmt.Sprintf("| %s | %s |", f.name, f.meanwhile)
		document.must(t, row)
		t.Run(f.name, func(t *testing.T) {
			n, k := bothWithMIG(t, "mixed")
			k.awaits(t, a100s())
			_, bystander := n.partsOf(t, k, "bystander", small, 1) // of GPU 2, which has the fewest
			happened := time.Now()
			if err := f.happen(n); err != nil {
				t.Fatal(err)
			}
			k.awaits(t, a100s().but(f.meanwhile))
			detected := time.Since(happened)
			ended := time.Now()
			if f.end != nil {
				if err := f.end(n); err != nil {
					t.Fatal(err)
				}
			}
			k.awaits(t, a100s().but(f.after))
			t.Logf("%s %s | %s |", row, detected.Round(time.Millisecond), time.Since(ended).Round(time.Millisecond))
			_, others := n.partsOf(t, k, "after", small, 15)
			disjoint(t, bystander, others)
			n.partsOf(t, k, "after-large", large, 3)
		})
	}
}

// An XID that names an instance is a fault of that MIG device and no other.
func TestXIDOfOneMIGDevice(t *testing.T) {
	n, k := bothWithMIG(t, "mixed")
	k.awaits(t, a100s())
	g := n.driver.State().GPUs[1]
	hit := g.MIG[4]
	if err := n.driver.Update(func(s *simdriver.State) error {
		s.Raise(simdriver.Event{GPU: g.UUID, Type: simdriver.EventXID, Data: 9999, GI: hit.GPUInstance, CI: hit.CI})
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	k.awaits(t, a100s().but(offer{small: "15 of 16"}))
	healthy := k.allocatable()[string(small)]
	if _, offered := healthy[hit.UUID]; offered || len(healthy) != 15 {
		t.Errorf("after an XID of %s, the healthy ones are %v", hit.UUID, healthy)
	}
	// People see it where they look.
	if s := n.awaitDevice(t, hit.UUID, "xid_9999"); s.GPU != g.UUID || s.Resource != string(small) {
		t.Errorf("its status is %+v", s)
	}
	n.awaitMetric(t, fmt.Sprintf(`gpucdi_devices{health="unhealthy",reason="xid_9999",resource=%q} 1`, small))
	for line := range strings.Lines(n.statusText(t)) {
		if strings.Contains(line, hit.UUID) && !strings.Contains(strings.Join(strings.Fields(line), " "), "A100-SXM4-40GB MIG 1g.5gb 4.8 GiB") {
			t.Errorf("the table shows it as %s", line)
		}
	}
	k.awaits(t, a100s())
}

// A MIG device without a capability is listed, and never given out in part; it
// is well as soon as the capability is there.
func TestMissingCapability(t *testing.T) {
	n := newNode(t, simdriver.A100MIG())
	file := filepath.Join(n.root, "proc/driver/nvidia-caps/mig-minors")
	whole, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	lacking := bytes.Replace(whole, []byte("gpu0/gi9/ci0/access"), []byte("gpu0/gi9/ci0/other"), 1)
	if err := os.WriteFile(file, lacking, 0o444); err != nil {
		t.Fatal(err)
	}
	n.configure(t, "mig: {strategy: mixed}")
	k := startKubelet(t, n.kubeletDir, 2)
	n.startAgent(t)
	k.awaits(t, a100s().but(offer{small: "15 of 16"}))
	_, given := n.partsOf(t, k, "others", small, 15)
	for _, m := range n.driver.State().GPUs[0].MIG {
		if m.GPUInstance != 9 {
			continue
		}
		disjoint(t, given, []string{m.UUID})
		for _, spec := range n.specs(t) {
			if bytes.Contains([]byte(spec), []byte(m.UUID)) {
				t.Errorf("the spec has %s, which is not whole", m.UUID)
			}
		}
	}
	if err := os.WriteFile(file, whole, 0o444); err != nil {
		t.Fatal(err)
	}
	t.Logf("well again %s after the capability came", k.awaits(t, a100s()).Round(time.Millisecond))
}
