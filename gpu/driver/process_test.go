package driver

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
	"unicode"

	"github.com/gpucdi/gpucdi/gpu"
	"github.com/gpucdi/gpucdi/internal/host"
)

// testTimeout bounds the wait for an expected event.
const testTimeout = 30 * time.Second

// scripted returns a config whose worker is a shell script. It sends messages on file descriptor 4 (messagesFD).
func scripted(t *testing.T, script string) Config {
	t.Helper()
	dir := t.TempDir()
	worker := filepath.Join(dir, "worker")
	for name, text := range map[string]string{worker: "#!/bin/sh\n" + script + "\n", filepath.Join(dir, host.NVMLName): ""} {
		if err := os.WriteFile(name, []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	return Config{Node: host.NewRoot(dir), Library: "/" + host.NVMLName, Interval: time.Millisecond, CallTimeout: time.Hour, Worker: worker}
}

// firstTwoSnapshots calls Run until it has yielded two snapshots, and returns them.
func firstTwoSnapshots(t *testing.T, cfg Config) (all []Snapshot) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), testTimeout)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		Run(ctx, cfg, &Settings{}, nil, func(r Report) {
			if snapshot, is := r.(Snapshot); is && len(all) < 2 {
				all = append(all, snapshot)
			}
			if len(all) == 2 {
				cancel()
			}
		})
	}()
	select {
	case <-ended:
	case <-time.After(2 * testTimeout):
		t.Fatal("Run did not return after its context was canceled")
	}
	if len(all) < 2 {
		t.Fatalf("got the snapshots %+v, want two", all)
	}
	return all
}

func TestCrashSummary(t *testing.T) {
	for output, want := range map[string]string{
		"":               "",
		"agent exited\n": ": agent exited",
		"panic: index out of range\n\ngoroutine 1 [running]:\nmain.main()\n":                    ": panic: index out of range",
		"SIGABRT: abort\nPC=0x7fa5 m=4\n\nnvml._Cfunc_nvmlInit_v2(...)\n\t_cgo_gotypes.go:5321": ": SIGABRT: abort in nvmlInit_v2",
		"\x1b[2J\x07bad": ": \ufffd[2J\ufffdbad",
		"a\n._Cfunc_" + strings.Repeat("\x1b", 1000): ": a in " + strings.Repeat("\ufffd", 20) + "…",
	} {
		if got := crashSummary(output); got != want {
			t.Errorf("crashSummary(%q) = %q, want %q", output, got, want)
		}
	}
}

// The error about a worker is a single short line and needs little memory, whatever the worker writes.
func TestWorkerOutputIsBounded(t *testing.T) {
	const flood = `head -c 200000000 /dev/zero | tr '\0' '\033'`
	for name, script := range map[string]string{
		"a flood on stderr":         flood + " >&2; exit 3",
		"an endless message":        `printf '{"failed":"' >&4; ` + flood + ` >&4`,
		"a long text in a message":  `(printf '{"failed":"'; head -c 1000000 /dev/zero | tr '\0' x; echo '"}') >&4`,
		"escapes in a message":      `echo '{"failed":"\u001b[31m\u0007 bad"}' >&4`,
		"a message of another type": `echo '{"inventory":"\u001b[31m"}' >&4`,
		"a long text in a field":    `(printf '{"inventory":{"gpus":[{"links":[{"pcie":"'; head -c 1000000 /dev/zero | tr '\0' x; echo '"}]}]}}') >&4`,
		"no message":                `printf 'GPU\033[31m\n' >&4`,
		"half a message":            `printf '{"failed":' >&4`,
	} {
		t.Run(name, func(t *testing.T) {
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			snapshot := firstTwoSnapshots(t, scripted(t, script))[0]
			runtime.ReadMemStats(&after)
			if snapshot.Err == nil {
				t.Fatalf("got %+v, want an error", snapshot)
			}
			text := snapshot.Err.Error()
			if len(text) > 2*failedLimit || strings.ContainsFunc(text, func(r rune) bool { return !unicode.IsPrint(r) }) {
				t.Errorf("error of %d bytes is too long or not printable: %.200q", len(text), text)
			}
			if allocated := after.TotalAlloc - before.TotalAlloc; allocated > 6*messageLimit {
				t.Errorf("%d MiB of memory were allocated", allocated>>20)
			}
		})
	}
}

func TestLargestInventoryFitsIntoMessage(t *testing.T) {
	text := strings.Repeat("x", 100)
	g := gpu.GPU{UUID: text, Index: 99, Minor: 255, PCIBusID: text, Product: text, Architecture: "Blackwell", MemoryBytes: 1 << 40,
		MIG: gpu.MIGEnabled, Clique: text, VGPU: &gpu.VGPU{HostDriver: text, HostBranch: text}, Fault: fault(text)}
	for range 8 {
		g.MIGDevices = append(g.MIGDevices, gpu.MIGDevice{UUID: text, Profile: text, MemoryBytes: 1 << 40, Fault: fault(text)})
	}
	for range MaxGPUs - 1 {
		g.Links = append(g.Links, gpu.Link{Peer: text[:40], NVLinks: 18, PCIe: gpu.SameNUMANode})
	}
	checkSize(t, Message{Inventory: &gpu.Inventory{GPUs: slices.Repeat([]gpu.GPU{g}, MaxGPUs)}})
}

func TestLargestTelemetryFitsIntoMessage(t *testing.T) {
	usage := gpu.CgroupUsage{Device: strings.Repeat("x", 100), Cgroup: strings.Repeat("x", CgroupPathLimit), MemoryUsed: new(uint64(1 << 63)), Utilization: 1.0 / 3}
	telemetry := gpu.Telemetry{Usage: &gpu.Usage{Cgroups: slices.Repeat([]gpu.CgroupUsage{usage}, MaxCgroups)}}
	m := Message{Telemetry: Telemetry{}}
	for i := range MaxGPUs {
		m.Telemetry[fmt.Sprint(strings.Repeat("x", 100), i)] = telemetry
	}
	checkSize(t, m)
}

func checkSize(t *testing.T, m Message) {
	t.Helper()
	data, err := json.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	if len(data) > messageLimit*3/4 { // leaves room for other fields
		t.Errorf("message of %d GPUs has %d bytes, more than 3/4 of the limit of %d", MaxGPUs, len(data), messageLimit)
	}
}

// NVML may write to standard output.
func TestStandardOutputIsNotParsedAsMessages(t *testing.T) {
	snapshot := firstTwoSnapshots(t, scripted(t, `echo "NVML was here"; echo '{"failed":"test error"}' >&4`))[0]
	if snapshot.Err == nil || snapshot.Err.Error() != "test error" {
		t.Errorf("got %+v", snapshot)
	}
}

// leaveChild is a shell command that starts a child which outlives the worker and inherits its file descriptors.
const leaveChild = `setsid sleep 600 & echo $! >> "$0.children"; `

// killChildren kills the children that leaveChild started.
func killChildren(t *testing.T, cfg Config) {
	t.Helper()
	text, err := os.ReadFile(cfg.Worker + ".children")
	if err != nil {
		t.Fatal(err)
	}
	for field := range strings.FieldsSeq(string(text)) {
		pid, err := strconv.Atoi(field)
		if err != nil {
			t.Fatal(err)
		}
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
			t.Errorf("killing a child of the worker: %v", err)
		}
	}
}

// A child that keeps the worker's output open, such as nvidia-modprobe, must not delay the next worker or the return of
// Run.
func TestWorkerLeavesChild(t *testing.T) {
	for name, script := range map[string]string{
		"it fails":             leaveChild + "echo test error >&2; exit 3",
		"it reports and fails": leaveChild + `echo '{"failed":"test error"}' >&4; exit 3`,
	} {
		t.Run(name, func(t *testing.T) {
			cfg := scripted(t, script)
			defer killChildren(t, cfg)
			for _, snapshot := range firstTwoSnapshots(t, cfg) {
				if snapshot.Err == nil || !strings.Contains(snapshot.Err.Error(), "test error") {
					t.Errorf("got %+v", snapshot)
				}
			}
		})
	}
}

func TestMessagesAreReadAfterWorkerExit(t *testing.T) {
	cfg := scripted(t, leaveChild+`for i in 1 2 3; do echo '{"xid":{"GPU":"GPU-a","Code":'$i'}}' >&4; done`)
	defer killChildren(t, cfg)
	ctx, cancel := context.WithTimeout(t.Context(), testTimeout)
	defer cancel()
	var codes []int
	Run(ctx, cfg, &Settings{}, nil, func(r Report) {
		switch r := r.(type) {
		case XID:
			codes = append(codes, r.Code)
			time.Sleep(2 * host.OutputDelay) // longer than the read deadline that follows the exit
		case Snapshot:
			cancel()
		}
	})
	if !slices.Equal(codes, []int{1, 2, 3}) {
		t.Errorf("got the XIDs %v, want 1 to 3", codes)
	}
}

// The first of many equal XIDs is reported immediately, the others together at the end of the probe cycle.
func TestRepeatedXIDsAreAggregated(t *testing.T) {
	cfg := scripted(t, `yes '{"xid":{"GPU":"GPU-a","Code":31}}' | head -n 10000 >&4; echo '{"xid":{"GPU":"GPU-b","Code":31}}' >&4
echo '{"probes":{"GPU-a":{}},"cycle":true}' >&4; echo '{"xid":{"GPU":"GPU-a","Code":31}}' >&4; sleep 600`)
	ctx, cancel := context.WithTimeout(t.Context(), testTimeout)
	defer cancel()
	var reports []Report
	Run(ctx, cfg, &Settings{}, nil, func(r Report) {
		if reports = append(reports, r); len(reports) == 5 {
			cancel()
		}
	})
	want := []Report{
		XID{GPU: "GPU-a", Code: 31}, XID{GPU: "GPU-b", Code: 31}, XID{GPU: "GPU-a", Code: 31, Times: 9999},
		Probes{"GPU-a": {}}, XID{GPU: "GPU-a", Code: 31},
	}
	if !reflect.DeepEqual(reports, want) {
		t.Errorf("got %+v, want %+v", reports, want)
	}
}

// A worker that neither records a step nor sends a message is reported as unresponsive.
func TestIdleWorker(t *testing.T) {
	cfg := scripted(t, "sleep 600")
	cfg.CallTimeout = 20 * time.Millisecond
	for _, snapshot := range firstTwoSnapshots(t, cfg) {
		if snapshot.Err == nil || !strings.HasPrefix(snapshot.Err.Error(), "unresponsive: ") {
			t.Errorf("got %+v", snapshot)
		}
	}
}

func TestXIDsOfReplacedWorkerAreReported(t *testing.T) {
	const xids = 50
	cfg := scripted(t, fmt.Sprintf(`for i in $(seq %d); do echo '{"xid":{"GPU":"GPU-a","Code":'$i'}}' >&4; done; touch "$0.done"; sleep 600`, xids))
	ctx, cancel := context.WithTimeout(t.Context(), testTimeout)
	defer cancel()
	reload := make(chan Config, 1)
	var codes []int
	Run(ctx, cfg, &Settings{}, reload, func(r Report) {
		xid, is := r.(XID)
		if !is {
			return
		}
		if codes = append(codes, xid.Code); len(codes) > 1 {
			if len(codes) == xids {
				cancel()
			}
			return
		}
		// Replace the worker only after it has written all XIDs.
		for start := time.Now(); time.Since(start) < testTimeout; time.Sleep(time.Millisecond) {
			if _, err := os.Stat(cfg.Worker + ".done"); err == nil {
				break
			}
		}
		next := cfg
		next.Worker = "/bin/false"
		reload <- next
	})
	for i, code := range codes {
		if code != i+1 {
			t.Fatalf("got the XIDs %v, want 1 to %d", codes, xids)
		}
	}
	if len(codes) != xids {
		t.Errorf("got %d XIDs, want %d", len(codes), xids)
	}
}
