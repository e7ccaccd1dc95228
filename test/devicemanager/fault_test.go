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

// NVML return codes.
const (
	unknownError = 999 // NVML_ERROR_UNKNOWN
	gpuIsLost    = 15  // NVML_ERROR_GPU_IS_LOST
)

// fault is injected while the agent runs, and cleared by restore.
type fault struct {
	name    string
	inject  func(n *node, gpu string) error
	remedy  string                          // remedy that a probe gives the fault before restore; empty: any
	restore func(n *node, gpu string) error // nil if the fault clears without intervention

	healthy  int64 // allocatable GPUs while the fault holds
	capacity int64 // advertised GPUs while the fault holds
}

// clears reports whether the fault clears without intervention, after the quiet period.
func (f fault) clears() bool { return f.restore == nil && f.healthy < f.capacity }

func faults() []fault {
	injectFault := func(f simdriver.Fault) func(*node, string) error {
		return func(n *node, gpu string) error {
			f.GPU = gpu
			return n.driver.InjectFault(f)
		}
	}
	clearFaults := func(n *node, _ string) error { return n.driver.ClearFaults() }
	update := func(change func(g *simdriver.GPU)) func(*node, string) error {
		return func(n *node, gpu string) error {
			return n.driver.Update(func(s *simdriver.State) error { change(s.GPU(gpu)); return nil })
		}
	}
	return []fault{
		{
			name:    "a transient XID",
			inject:  func(n *node, gpu string) error { return n.driver.RaiseXID(gpu, 9999) },
			healthy: 7, capacity: 8,
		},
		{
			name: "an XID that requires a reset, until the recovery action is none",
			inject: func(n *node, gpu string) error {
				if err := update(func(g *simdriver.GPU) { g.RecoveryAction = simdriver.RecoveryReset })(n, gpu); err != nil {
					return err
				}
				return n.driver.RaiseXID(gpu, 48)
			},
			remedy:  "recovers after a GPU reset", // before a probe gives it, only the quiet period clears the fault
			restore: update(func(g *simdriver.GPU) { g.RecoveryAction = simdriver.RecoveryNone }),
			healthy: 7, capacity: 8,
		},
		{
			name:    "the driver requires a reset",
			inject:  update(func(g *simdriver.GPU) { g.RecoveryAction = simdriver.RecoveryDrainAndReset }),
			restore: update(func(g *simdriver.GPU) { g.RecoveryAction = simdriver.RecoveryNone }),
			healthy: 7, capacity: 8,
		},
		{
			name:    "a GPU is lost and returns",
			inject:  func(n *node, gpu string) error { return n.driver.Lose(gpu) },
			restore: func(n *node, gpu string) error { return n.driver.Return(gpu) },
			healthy: 7, capacity: 8,
		},
		{
			name:    "calls about a GPU fail",
			inject:  injectFault(simdriver.Fault{Return: unknownError}),
			restore: clearFaults,
			healthy: 7, capacity: 8,
		},
		{
			name:    "a call about a GPU hangs",
			inject:  injectFault(simdriver.Fault{Func: "nvmlDeviceGetMemoryInfo", Hang: time.Hour}),
			restore: clearFaults,
			healthy: 7, capacity: 8,
		},
		{
			name:    "a call about a GPU crashes the driver worker",
			inject:  injectFault(simdriver.Fault{Func: "nvmlDeviceGetTotalEccErrors", Crash: true}),
			restore: clearFaults,
			healthy: 7, capacity: 8,
		},
		{
			name: "a call about no GPU hangs",
			inject: func(n *node, _ string) error {
				return n.driver.InjectFault(simdriver.Fault{Func: "nvmlEventSetWait_v2", Hang: time.Hour})
			},
			restore: clearFaults,
			healthy: 0, capacity: 8,
		},
		{
			name: "a call about no GPU crashes the driver worker",
			inject: func(n *node, _ string) error {
				return n.driver.InjectFault(simdriver.Fault{Func: "nvmlEventSetWait_v2", Crash: true})
			},
			restore: clearFaults,
			healthy: 0, capacity: 8,
		},
		{
			name:    "the driver is unloaded and loaded",
			inject:  func(n *node, _ string) error { return n.driver.Unload() },
			restore: func(n *node, _ string) error { return n.driver.Load() },
			healthy: 0, capacity: 8,
		},
		{
			name:   "the driver is removed and installed",
			inject: func(n *node, _ string) error { return n.driver.Uninstall() },
			restore: func(n *node, _ string) (err error) {
				other := simdriver.H100x8()
				other.Version = "575.51.03"
				n.driver, err = simdriver.Install(n.root, other)
				return err
			},
			healthy: 0, capacity: 8,
		},
		{
			name:    "the driver is upgraded",
			inject:  func(n *node, _ string) error { return n.driver.Upgrade("590.12.34") },
			healthy: 8, capacity: 8,
		},
		removal("a GPU is removed and returns", func(*simdriver.GPU) {}),
		removal("a GPU is removed and returns with another minor", func(g *simdriver.GPU) { g.Minor = 23 }),
	}
}

// removal removes a GPU, and adds it again after a change.
func removal(name string, change func(g *simdriver.GPU)) fault {
	var removed simdriver.GPU
	return fault{
		name: name,
		inject: func(n *node, gpu string) (err error) {
			removed, err = n.driver.Remove(gpu)
			return err
		},
		restore: func(n *node, _ string) error {
			change(&removed)
			return n.driver.Add(removed)
		},
		healthy: 7, capacity: 8,
	}
}

func TestFaults(t *testing.T) {
	t.Parallel()
	testFaults(t, faults())
}

// testFaults injects each fault while a pod holds other GPUs than the affected one. It logs the time until the kubelet
// has the reduced count, and from restore until it has all GPUs again, as rows of docs/health.md.
func testFaults(t *testing.T, faults []fault) {
	document := readHealthDoc(t)
	for _, f := range faults {
		row := fmt.Sprintf("| %s | %d of %d |", f.name, f.healthy, f.capacity)
		document.requireRow(t, row)
		t.Run(f.name, func(t *testing.T) {
			t.Parallel()
			config := fastHealth
			if f.clears() {
				config = longQuiet // until restored below, so that the fault holds until the kubelet has restarted
			}
			n, k := startNode(t, config)
			_, held := n.admitPod(t, k, "bystander", 2)
			faulty := n.uuids()[5]
			if slices.Contains(held, faulty) {
				t.Fatalf("the bystander holds %v, which includes the faulty GPU", held)
			}
			injected := time.Now()
			if err := f.inject(n, faulty); err != nil {
				t.Fatal(err)
			}
			k.awaitGPUs(t, f.capacity, f.healthy)
			detected := time.Since(injected)
			k = k.restart(t, 2) // unhealthy GPUs stay unhealthy
			k.awaitGPUs(t, f.capacity, f.healthy)
			if f.healthy > 0 && f.restore != nil {
				meanwhile, uuids := n.admitPod(t, k, "meanwhile", 5) // all healthy GPUs but the bystander's
				if slices.Contains(uuids, faulty) != (f.healthy == 8) {
					t.Errorf("a pod has %v, want it to include %s: %t", uuids, faulty, f.healthy == 8)
				}
				k.removePod(meanwhile)
			}
			if f.remedy != "" {
				n.awaitStatus(t, func(s nodeStatus) bool {
					return slices.ContainsFunc(s.Devices, func(d deviceStatus) bool {
						return d.ID == faulty && d.Fault != nil && d.Fault.Remedy == f.remedy
					})
				})
			}
			restored := time.Now()
			if f.clears() {
				n.configure(t, fastHealth)
			}
			if f.restore != nil {
				if err := f.restore(n, faulty); err != nil {
					t.Fatal(err)
				}
			}
			k.awaitGPUs(t, 8, 8)
			n.awaitVersion(t)
			t.Logf("%s %s | %s |", row, detected.Round(time.Millisecond), time.Since(restored).Round(time.Millisecond))
			if _, uuids := n.admitPod(t, k, "after", 6); !slices.Contains(uuids, faulty) {
				t.Errorf("after recovery a pod has %v, which lacks %s", uuids, faulty)
			}
		})
	}
}

// healthDoc is the text of docs/health.md.
type healthDoc string

func readHealthDoc(t *testing.T) healthDoc {
	t.Helper()
	text, err := os.ReadFile("../../docs/health.md")
	if err != nil {
		t.Fatal(err)
	}
	return healthDoc(text)
}

// requireRow reports an error unless a table row of the document begins with row.
func (d healthDoc) requireRow(t *testing.T, row string) {
	t.Helper()
	if !strings.Contains(string(d), "\n"+row) {
		t.Errorf("docs/health.md has no row %q", row)
	}
}

// A GPU with a fault that the driver reports is not advertised as healthy after an agent restart, not even briefly.
func TestFaultBeforeAgentStart(t *testing.T) {
	t.Parallel()
	n, k := startNode(t)
	faulty := n.uuids()[5]
	setRecoveryAction := func(action int) {
		if err := n.driver.Update(func(s *simdriver.State) error { s.GPU(faulty).RecoveryAction = action; return nil }); err != nil {
			t.Fatal(err)
		}
	}
	setRecoveryAction(simdriver.RecoveryReset)
	k.awaitGPUs(t, 8, 7)
	n.killAgent(t)
	k.awaitGPUs(t, 8, 0)
	n.startAgent(t)
	for start := time.Now(); ; time.Sleep(time.Millisecond) {
		_, allocatable := k.capacity()
		if now := quantity(allocatable); now == 7 {
			break
		} else if now != 0 || time.Since(start) > timeout {
			t.Fatalf("%d GPUs are allocatable after the agent restart, want 7", now)
		}
	}
	setRecoveryAction(simdriver.RecoveryNone)
	k.awaitGPUs(t, 8, 8)
}

// A GPU whose first probe hangs has no UUID yet. The other GPUs are advertised.
func TestHangBeforeAgentStart(t *testing.T) {
	t.Parallel()
	n := newNode(t, simdriver.H100x8())
	if err := n.driver.InjectFault(simdriver.Fault{GPU: n.uuids()[5], Func: "nvmlDeviceGetPciInfo", Hang: time.Hour}); err != nil {
		t.Fatal(err)
	}
	k := startKubelet(t, n.kubeletDir, 2)
	n.startAgent(t)
	k.awaitGPUs(t, 7, 7)
	if err := n.driver.ClearFaults(); err != nil {
		t.Fatal(err)
	}
	k.awaitGPUs(t, 8, 8)
}

// A driver worker that crashes repeatedly, in calls about one GPU or about none, is logged once for each affected GPU.
func TestCrashIsReportedOnce(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		function string
		oneGPU   bool
		affected int // GPUs
	}{{"nvmlDeviceGetTotalEccErrors", true, 1}, {"nvmlEventSetWait_v2", false, 8}} {
		t.Run(tc.function, func(t *testing.T) {
			t.Parallel()
			n, k := startNode(t)
			n.configure(t, longQuiet)
			crash := simdriver.Fault{Func: tc.function, Crash: true}
			if tc.oneGPU {
				crash.GPU = n.uuids()[5]
			}
			if err := n.driver.InjectFault(crash); err != nil {
				t.Fatal(err)
			}
			k.awaitGPUs(t, 8, int64(8-tc.affected))
			n.awaitCalls(t, "nvmlInit_v2", n.nvmlCallCounts(t)["nvmlInit_v2"]+3)
			if err := n.driver.ClearFaults(); err != nil {
				t.Fatal(err)
			}
			k.awaitGPUs(t, 8, 8)
			n.stopAgent(t)
			logs := n.logs.String()
			reason := fmt.Sprintf(`reason="driver worker exited: exit status 2: SIGABRT: abort in %s"`, tc.function)
			lines := []string{reason, `msg="device unhealthy"`, `msg="device recovered"`}
			if tc.oneGPU {
				lines = append(lines, `msg="driver read"`) // the driver stayed available
			}
			for _, line := range lines {
				if count := strings.Count(logs, line); count != tc.affected {
					t.Errorf("%s was logged %d times, want %d:\n%s", line, count, tc.affected, logs)
				}
			}
		})
	}
}

// TestNoHotLoop counts the agent's work in 5 probe intervals, first without events, then while each wait for events
// fails immediately. Each probe causes one wait, and another to drain an event set that failed. A hot loop causes
// thousands.
func TestNoHotLoop(t *testing.T) {
	t.Parallel()
	const intervals, limit = 5, 50
	n, k := startNode(t, patient)
	stream, err := n.client(t).ListAndWatch(t.Context(), &v1beta1.Empty{})
	if err != nil {
		t.Fatal(err)
	}
	var lists atomic.Int64
	go func() {
		for {
			if _, err := stream.Recv(); err != nil {
				return // the test has ended
			}
			lists.Add(1)
		}
	}()
	for _, fails := range []bool{false, true} {
		if fails {
			if err := n.driver.InjectFault(simdriver.Fault{Func: "nvmlEventSetWait_v2", Return: gpuIsLost}); err != nil {
				t.Fatal(err)
			}
		}
		before := n.work(t)
		time.Sleep(intervals * time.Second)
		for kind, count := range n.work(t) {
			if count -= before[kind]; count > limit {
				t.Errorf("%d %s in %d probe intervals (waits fail: %t), want at most %d", count, kind, intervals, fails, limit)
			}
		}
		n.awaitCalls(t, "nvmlEventSetWait_v2", uint64(before["event waits"]+intervals))
	}
	if err := n.driver.ClearFaults(); err != nil {
		t.Fatal(err)
	}
	if n := lists.Load(); n != 1 {
		t.Errorf("got %d device lists without a change, want one", n)
	}

	// Verify the counters: a detected fault increases each of them.
	before := n.work(t)
	if err := n.driver.RaiseXID(n.uuids()[5], 9999); err != nil {
		t.Fatal(err)
	}
	k.awaitGPUs(t, 8, 7)
	for kind := range before {
		for start := time.Now(); n.work(t)[kind] == before[kind] || lists.Load() == 1; time.Sleep(10 * time.Millisecond) {
			if time.Since(start) > timeout {
				t.Fatalf("a fault does not increase %s: %v before, %v after, %d device lists", kind, before, n.work(t), lists.Load())
			}
		}
	}
}

// work counts the operations that a hot loop would repeat.
func (n *node) work(t *testing.T) map[string]int {
	t.Helper()
	return map[string]int{
		"event waits": int(n.eventWaits(t)),
		"probes":      int(n.nvmlCallCounts(t)["nvmlDeviceGetTemperature"]) / len(n.uuids()),
		"reconciles":  n.metricValue(t, "gpucdi_reconciles_total"),
	}
}

// eventWaits returns the number of waits for NVML events.
func (n *node) eventWaits(t *testing.T) uint64 {
	t.Helper()
	return n.nvmlCallCounts(t)["nvmlEventSetWait_v2"]
}

// awaitVersion waits until the CDI spec has libraries of the installed driver version.
func (n *node) awaitVersion(t *testing.T) {
	t.Helper()
	want := ".so." + n.driver.State().Version
	for start := time.Now(); ; time.Sleep(10 * time.Millisecond) {
		for _, spec := range n.specs(t) {
			if strings.Contains(spec, want) {
				return
			}
		}
		if time.Since(start) > timeout {
			t.Fatalf("the CDI spec has no library %s", want)
		}
	}
}
