package devicemanager

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/gpucdi/gpucdi/test/simdriver"
)

// NVML's error codes that faults return here.
const (
	unknownError = 999
	gpuIsLost    = 15
)

// fault is something that goes wrong under a running agent, and how it ends.
type fault struct {
	name   string
	happen func(n *node, gpu string) error
	end    func(n *node, gpu string) error // nil: it ends by itself

	healthy  int64 // GPUs that stay healthy while it lasts
	capacity int64 // GPUs that stay listed while it lasts
}

func faults() []fault {
	break1 := func(f simdriver.Fault) func(*node, string) error {
		return func(n *node, gpu string) error {
			f.GPU = gpu
			return n.driver.Break(f)
		}
	}
	mend := func(n *node, _ string) error { return n.driver.Mend() }
	update := func(change func(g *simdriver.GPU)) func(*node, string) error {
		return func(n *node, gpu string) error {
			return n.driver.Update(func(s *simdriver.State) error { change(s.GPU(gpu)); return nil })
		}
	}
	var removed simdriver.GPU
	return []fault{
		{
			name:    "an XID that may pass",
			happen:  func(n *node, gpu string) error { return n.driver.RaiseXID(gpu, 9999) },
			healthy: 7, capacity: 8,
		},
		{
			name: "an XID that needs a reset, until the driver asks for none",
			happen: func(n *node, gpu string) error {
				if err := update(func(g *simdriver.GPU) { g.RecoveryAction = 1 })(n, gpu); err != nil {
					return err
				}
				return n.driver.RaiseXID(gpu, 48)
			},
			end:     update(func(g *simdriver.GPU) { g.RecoveryAction = 0 }),
			healthy: 7, capacity: 8,
		},
		{
			name:    "the driver asks for a reset",
			happen:  update(func(g *simdriver.GPU) { g.RecoveryAction = 4 }),
			end:     update(func(g *simdriver.GPU) { g.RecoveryAction = 0 }),
			healthy: 7, capacity: 8,
		},
		{
			name:    "a GPU is lost and returns",
			happen:  func(n *node, gpu string) error { return n.driver.Lose(gpu) },
			end:     func(n *node, gpu string) error { return n.driver.Return(gpu) },
			healthy: 7, capacity: 8,
		},
		{
			name:    "calls about a GPU fail",
			happen:  break1(simdriver.Fault{Return: unknownError}),
			end:     mend,
			healthy: 7, capacity: 8,
		},
		{
			name:    "a call about a GPU hangs",
			happen:  break1(simdriver.Fault{Func: "nvmlDeviceGetMemoryInfo", Hang: time.Hour}),
			end:     mend,
			healthy: 7, capacity: 8,
		},
		{
			name:    "a call about a GPU ends its process",
			happen:  break1(simdriver.Fault{Func: "nvmlDeviceGetTotalEccErrors", Crash: true}),
			end:     mend,
			healthy: 7, capacity: 8,
		},
		{
			name: "a call about no GPU hangs",
			happen: func(n *node, _ string) error {
				return n.driver.Break(simdriver.Fault{Func: "nvmlEventSetWait_v2", Hang: time.Hour})
			},
			end:     mend,
			healthy: 0, capacity: 8,
		},
		{
			name: "a call about no GPU ends its process",
			happen: func(n *node, _ string) error {
				return n.driver.Break(simdriver.Fault{Func: "nvmlEventSetWait_v2", Crash: true})
			},
			end:     mend,
			healthy: 0, capacity: 8,
		},
		{
			name:    "the driver is unloaded and loaded",
			happen:  func(n *node, _ string) error { return n.driver.Unload() },
			end:     func(n *node, _ string) error { return n.driver.Load() },
			healthy: 0, capacity: 8,
		},
		{
			name:   "the driver is removed and installed",
			happen: func(n *node, _ string) error { return n.driver.Uninstall() },
			end: func(n *node, _ string) (err error) {
				other := simdriver.H100x8()
				other.Version = "575.51.03"
				n.driver, err = simdriver.Install(n.root, other)
				return err
			},
			healthy: 0, capacity: 8,
		},
		{
			name:    "the driver is upgraded",
			happen:  func(n *node, _ string) error { return n.driver.Upgrade("590.12.34") },
			healthy: 8, capacity: 8,
		},
		{
			name: "a GPU is pulled out and put back",
			happen: func(n *node, gpu string) (err error) {
				removed, err = n.driver.Remove(gpu)
				return err
			},
			end:     func(n *node, _ string) error { return n.driver.Add(removed) },
			healthy: 7, capacity: 8,
		},
		{
			name: "a GPU is pulled out and put back at another minor",
			happen: func(n *node, gpu string) (err error) {
				removed, err = n.driver.Remove(gpu)
				return err
			},
			end: func(n *node, _ string) error {
				removed.Minor = 23
				return n.driver.Add(removed)
			},
			healthy: 7, capacity: 8,
		},
	}
}

func TestFaults(t *testing.T) { letHappen(t, faults()) }

// letHappen lets each fault happen under a pod that holds other GPUs than the
// one that it is about, and logs how long it was until the kubelet knew, and
// until all was well again. docs/health.md has what it logs.
func letHappen(t *testing.T, faults []fault) {
	document := readHealth(t)
	for _, f := range faults {
		row := fmt.Sprintf("| %s | %d of %d |", f.name, f.healthy, f.capacity)
		document.must(t, row)
		t.Run(f.name, func(t *testing.T) {
			n, k := both(t)
			_, held := n.admitted(t, k, "bystander", 2)
			sick := n.uuids()[5]
			if slices.Contains(held, sick) {
				t.Fatalf("the bystander holds %v", held)
			}
			happened := time.Now()
			if err := f.happen(n, sick); err != nil {
				t.Fatal(err)
			}
			k.counts(t, f.capacity, f.healthy)
			detected := time.Since(happened)
			k = k.restart(t, 2) // which forgets nothing
			k.counts(t, f.capacity, f.healthy)
			if f.healthy > 0 && f.end != nil {
				meanwhile, uuids := n.admitted(t, k, "meanwhile", 5) // all others
				if slices.Contains(uuids, sick) != (f.healthy == 8) {
					t.Errorf("a pod is given %v, %s among them", uuids, sick)
				}
				k.forget(meanwhile)
			}
			ended := time.Now()
			if f.end != nil {
				if err := f.end(n, sick); err != nil {
					t.Fatal(err)
				}
			}
			k.counts(t, 8, 8)
			n.awaitVersion(t)
			t.Logf("%s %s | %s |", row, detected.Round(time.Millisecond), time.Since(ended).Round(time.Millisecond))
			if _, uuids := n.admitted(t, k, "after", 6); !slices.Contains(uuids, sick) {
				t.Errorf("the pod after it has %v, without %s", uuids, sick)
			}
		})
	}
}

// healthDocument is docs/health.md.
type healthDocument string

func readHealth(t *testing.T) healthDocument {
	t.Helper()
	text, err := os.ReadFile("../../docs/health.md")
	if err != nil {
		t.Fatal(err)
	}
	return healthDocument(text)
}

// must have the row that begins so.
func (d healthDocument) must(t *testing.T, row string) {
	t.Helper()
	if !strings.Contains(string(d), "\n"+row) {
		t.Errorf("docs/health.md has no row %q", row)
	}
}

// A GPU that was sick before the agent came is never given out as a healthy one:
// what the hardware can tell, no restart forgets.
func TestSickBeforeTheAgentStarts(t *testing.T) {
	n, k := both(t)
	sick := n.uuids()[5]
	ask := func(action int) {
		if err := n.driver.Update(func(s *simdriver.State) error { s.GPU(sick).RecoveryAction = action; return nil }); err != nil {
			t.Fatal(err)
		}
	}
	ask(1)
	k.counts(t, 8, 7)
	n.killAgent(t)
	k.counts(t, 8, 0)
	n.startAgent(t)
	for start := time.Now(); ; {
		_, gives := k.capacity()
		if now := quantity(gives); now == 7 {
			break
		} else if now != 0 || time.Since(start) > patience {
			t.Fatalf("%d GPUs are offered after the agent's restart, want 7", now)
		}
	}
	ask(0)
	k.counts(t, 8, 8)
}

// A GPU that holds up the first look at it has no name yet. The others are served.
func TestHangsBeforeTheAgentStarts(t *testing.T) {
	n := newNode(t, simdriver.H100x8())
	if err := n.driver.Break(simdriver.Fault{GPU: n.uuids()[5], Func: "nvmlDeviceGetPciInfo", Hang: time.Hour}); err != nil {
		t.Fatal(err)
	}
	k := startKubelet(t, n.kubeletDir, 2)
	n.startAgent(t)
	k.counts(t, 7, 7)
	if err := n.driver.Mend(); err != nil {
		t.Fatal(err)
	}
	k.counts(t, 8, 8)
}

// What looks at the driver can end again and again, because of one GPU or nobody knows
// which. The kubelet and people are told of it once, in a line.
func TestACrashIsToldOnce(t *testing.T) {
	for _, tc := range []struct {
		function string
		ofOne    bool
		sick     int
	}{{"nvmlDeviceGetTotalEccErrors", true, 1}, {"nvmlEventSetWait_v2", false, 8}} {
		t.Run(tc.function, func(t *testing.T) {
			n, k := both(t)
			crash := simdriver.Fault{Func: tc.function, Crash: true}
			if tc.ofOne {
				crash.GPU = n.uuids()[5]
			}
			if err := n.driver.Break(crash); err != nil {
				t.Fatal(err)
			}
			k.counts(t, 8, int64(8-tc.sick))
			n.awaitCalls(t, "nvmlInit_v2", n.counted(t)["nvmlInit_v2"]+3)
			if err := n.driver.Mend(); err != nil {
				t.Fatal(err)
			}
			k.counts(t, 8, 8)
			n.stopAgent(t)
			said := n.said.String()
			reason := fmt.Sprintf(`reason="driver worker ended: exit status 2: SIGABRT: abort in %s"`, tc.function)
			lines := []string{reason, `msg="device is unhealthy"`, `msg="device is healthy again"`}
			if tc.ofOne {
				lines = append(lines, `msg="driver read"`) // the driver was there all the time
			}
			for _, line := range lines {
				if times := strings.Count(said, line); times != tc.sick {
					t.Errorf("%s was said %d times, want %d, in\n%s", line, times, tc.sick, said)
				}
			}
		})
	}
}

// TestNoHotLoop counts what the agent does in 5 probe intervals while there are no events, and
// while each wait for them fails at once. Each probe leads to a wait, and to another to empty a
// set that failed. A hot loop makes thousands.
func TestNoHotLoop(t *testing.T) {
	const intervals, limit = 5, 50
	n, k := both(t)
	stream, err := n.client(t).ListAndWatch(t.Context(), &v1beta1.Empty{})
	if err != nil {
		t.Fatal(err)
	}
	var lists atomic.Int64
	go func() {
		for {
			if _, err := stream.Recv(); err != nil {
				return // by the end of the test
			}
			lists.Add(1)
		}
	}()
	for _, fails := range []bool{false, true} {
		if fails {
			if err := n.driver.Break(simdriver.Fault{Func: "nvmlEventSetWait_v2", Return: gpuIsLost}); err != nil {
				t.Fatal(err)
			}
		}
		before := n.work(t)
		time.Sleep(intervals * time.Second)
		for what, made := range n.work(t) {
			if made -= before[what]; made > limit {
				t.Errorf("%d %s in %d probe intervals (waits fail: %t), want at most %d", made, what, intervals, fails, limit)
			}
		}
		n.awaitCalls(t, "nvmlEventSetWait_v2", uint64(before["event waits"]+intervals))
	}
	if err := n.driver.Mend(); err != nil {
		t.Fatal(err)
	}
	if n := lists.Load(); n != 1 {
		t.Errorf("the kubelet was sent %d lists of GPUs that did not change, want one", n)
	}

	// The counts are not blind: a fault that is detected leads to more of everything.
	before := n.work(t)
	if err := n.driver.RaiseXID(n.uuids()[5], 9999); err != nil {
		t.Fatal(err)
	}
	k.counts(t, 8, 7)
	for what := range before {
		for start := time.Now(); n.work(t)[what] == before[what] || lists.Load() == 1; time.Sleep(10 * time.Millisecond) {
			if time.Since(start) > patience {
				t.Fatalf("a fault leads to no more %s: %v before and %v after it, %d lists", what, before, n.work(t), lists.Load())
			}
		}
	}
}

// work counts what a hot loop would do.
func (n *node) work(t *testing.T) map[string]int {
	t.Helper()
	return map[string]int{
		"event waits": int(n.eventWaits(t)),
		"probes":      int(n.counted(t)["nvmlDeviceGetTemperature"]) / len(n.uuids()),
		"reconciles":  n.counter(t, "gpucdi_reconciles_total"),
	}
}

// eventWaits is how often the driver was asked for events.
func (n *node) eventWaits(t *testing.T) uint64 {
	t.Helper()
	return n.counted(t)["nvmlEventSetWait_v2"]
}

// awaitVersion waits until the CDI spec is of the driver that is installed.
func (n *node) awaitVersion(t *testing.T) {
	t.Helper()
	want := ".so." + n.driver.State().Version
	for start := time.Now(); ; time.Sleep(10 * time.Millisecond) {
		for _, spec := range n.specs(t) {
			if strings.Contains(spec, want) {
				return
			}
		}
		if time.Since(start) > patience {
			t.Fatalf("the spec is still not of driver %s", want)
		}
	}
}
