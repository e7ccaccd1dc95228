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

// patience is when a test gives up on something that must happen.
const patience = 30 * time.Second

// scripted returns a config whose worker is a shell script.
func scripted(t *testing.T, script string) Config {
	t.Helper()
	dir := t.TempDir()
	worker := filepath.Join(dir, "worker")
	for name, text := range map[string]string{worker: "#!/bin/sh\n" + script + "\n", filepath.Join(dir, host.NVMLName): ""} {
		if err := os.WriteFile(name, []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	return Config{Node: host.NewRoot(dir), Library: "/" + host.NVMLName, Interval: time.Millisecond, CallWithin: time.Hour, Worker: worker}
}

// readings returns the first two readings of workers, and waits until Run has ended.
func readings(t *testing.T, cfg Config) (all []Reading) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		Run(ctx, cfg, nil, func(r Report) {
			if reading, is := r.(Reading); is && len(all) < 2 {
				all = append(all, reading)
			}
			if len(all) == 2 {
				cancel()
			}
		})
	}()
	select {
	case <-ended:
	case <-time.After(2 * patience):
		t.Fatal("Run does not end with its context")
	}
	if len(all) < 2 {
		t.Fatalf("reported is %+v, want two readings", all)
	}
	return all
}

func TestLastWords(t *testing.T) {
	for written, want := range map[string]string{
		"":                          "",
		"the agent is gone <nil>\n": ": the agent is gone <nil>",
		"panic: index out of range\n\ngoroutine 1 [running]:\nmain.main()\n":                    ": panic: index out of range",
		"SIGABRT: abort\nPC=0x7fa5 m=4\n\nnvml._Cfunc_nvmlInit_v2(...)\n\t_cgo_gotypes.go:5321": ": SIGABRT: abort in nvmlInit_v2",
		"\x1b[2J\x07bad": ": \ufffd[2J\ufffdbad",
		"a\n._Cfunc_" + strings.Repeat("\x1b", 1000): ": a in " + strings.Repeat("\ufffd", 20) + "…",
	} {
		if got := lastWords(written); got != want {
			t.Errorf("of %q it is told %q, want %q", written, got, want)
		}
	}
}

// Whatever a worker writes before it ends, the report is a short line and takes little memory.
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
			reading := readings(t, scripted(t, script))[0]
			runtime.ReadMemStats(&after)
			if reading.Err == nil {
				t.Fatalf("reported is %+v, want an error", reading)
			}
			text := reading.Err.Error()
			if len(text) > 2*failedLimit || strings.ContainsFunc(text, func(r rune) bool { return !unicode.IsPrint(r) }) {
				t.Errorf("the error has %d bytes: %.200q", len(text), text)
			}
			if took := after.TotalAlloc - before.TotalAlloc; took > 6*messageLimit {
				t.Errorf("%d MB of memory were allocated", took>>20)
			}
		})
	}
}

// The largest inventory fits a message.
func TestLargestInventoryFits(t *testing.T) {
	const longest = 100 // of a text, and of a fault
	text := strings.Repeat("x", longest)
	g := gpu.GPU{UUID: text, Index: 99, Minor: 255, PCIBusID: text, Product: text, Architecture: "Blackwell", MemoryBytes: 1 << 40,
		MIG: gpu.MIGEnabled, Clique: text, VGPU: &gpu.VGPU{HostDriver: text, HostBranch: text}, Fault: fault(text)}
	for range 8 {
		g.MIGDevices = append(g.MIGDevices, gpu.MIGDevice{UUID: text, Profile: text, MemoryBytes: 1 << 40, Fault: fault(text)})
	}
	for range MaxGPUs - 1 {
		g.Links = append(g.Links, gpu.Link{Peer: text[:40], NVLinks: 18, PCIe: gpu.SameNUMANode})
	}
	data, err := json.Marshal(Message{Inventory: &gpu.Inventory{GPUs: slices.Repeat([]gpu.GPU{g}, MaxGPUs)}})
	if err != nil {
		t.Fatal(err)
	}
	if len(data) > messageLimit {
		t.Errorf("%d GPUs take %d bytes, more than the limit of %d", MaxGPUs, len(data), messageLimit)
	}
}

// What the driver's library writes to its standard output is not taken for a message.
func TestStandardOutputIsNoMessage(t *testing.T) {
	reading := readings(t, scripted(t, `echo "NVML was here"; echo '{"failed":"no luck"}' >&4`))[0]
	if reading.Err == nil || reading.Err.Error() != "no luck" {
		t.Errorf("reported is %+v", reading)
	}
}

// lingers is a command that leaves a child behind which keeps all descriptors of the worker open.
const lingers = `setsid sleep 600 & echo $! >> "$0.children"; `

// killChildren ends what lingers.
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
			t.Errorf("ending a child of the worker: %v", err)
		}
	}
}

// A child of the worker that keeps its output open, as nvidia-modprobe may, holds up neither the
// next worker nor the end.
func TestWorkerLeavesAChild(t *testing.T) {
	for name, script := range map[string]string{
		"it fails":             lingers + "echo bad luck >&2; exit 3",
		"it reports and fails": lingers + `echo '{"failed":"bad luck"}' >&4; exit 3`,
	} {
		t.Run(name, func(t *testing.T) {
			cfg := scripted(t, script)
			defer killChildren(t, cfg)
			for _, reading := range readings(t, cfg) {
				if reading.Err == nil || !strings.Contains(reading.Err.Error(), "bad luck") {
					t.Errorf("reported is %+v", reading)
				}
			}
		})
	}
}

// The last messages of a worker that ends are read even if the agent is late.
func TestMessagesOfAWorkerThatEndedAreRead(t *testing.T) {
	cfg := scripted(t, lingers+`for i in 1 2 3; do echo '{"xid":{"GPU":"GPU-a","Code":'$i'}}' >&4; done`)
	defer killChildren(t, cfg)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	var codes []int
	Run(ctx, cfg, nil, func(r Report) {
		switch r := r.(type) {
		case XID:
			codes = append(codes, r.Code)
			time.Sleep(2 * host.OutputDelay)
		case Reading:
			cancel()
		}
	})
	if !slices.Equal(codes, []int{1, 2, 3}) {
		t.Errorf("XIDs %v are reported, want 1 to 3", codes)
	}
}

// A flood of the same XID becomes two reports: the first at once, the others with the next round.
func TestXIDsAreReportedOnceARound(t *testing.T) {
	cfg := scripted(t, `yes '{"xid":{"GPU":"GPU-a","Code":31}}' | head -n 10000 >&4; echo '{"xid":{"GPU":"GPU-b","Code":31}}' >&4
echo '{"probes":{"GPU-a":{}},"round":true}' >&4; echo '{"xid":{"GPU":"GPU-a","Code":31}}' >&4; sleep 600`)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	var reports []Report
	Run(ctx, cfg, nil, func(r Report) {
		if reports = append(reports, r); len(reports) == 5 {
			cancel()
		}
	})
	want := []Report{
		XID{GPU: "GPU-a", Code: 31}, XID{GPU: "GPU-b", Code: 31}, XID{GPU: "GPU-a", Code: 31, Times: 9999},
		Probes{"GPU-a": {}}, XID{GPU: "GPU-a", Code: 31},
	}
	if !reflect.DeepEqual(reports, want) {
		t.Errorf("reported is %+v, want %+v", reports, want)
	}
}

// A worker that neither marks a step nor sends a message is stopped: nobody knows of any GPU then.
func TestWorkerThatDoesNothing(t *testing.T) {
	cfg := scripted(t, "sleep 600")
	cfg.CallWithin = 20 * time.Millisecond
	for _, reading := range readings(t, cfg) {
		if reading.Err == nil || !strings.HasPrefix(reading.Err.Error(), "unresponsive: ") {
			t.Errorf("reported is %+v", reading)
		}
	}
}

// XIDs that a worker has reported are passed on even if it is replaced before they were read.
func TestXIDsOfAReplacedWorkerAreRead(t *testing.T) {
	const xids = 50
	cfg := scripted(t, fmt.Sprintf(`for i in $(seq %d); do echo '{"xid":{"GPU":"GPU-a","Code":'$i'}}' >&4; done; touch "$0.done"; sleep 600`, xids))
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	reload := make(chan Config, 1)
	var codes []int
	Run(ctx, cfg, reload, func(r Report) {
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
		for start := time.Now(); time.Since(start) < patience; time.Sleep(time.Millisecond) {
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
			t.Fatalf("XIDs %v are reported, want 1 to %d", codes, xids)
		}
	}
	if len(codes) != xids {
		t.Errorf("%d XIDs are reported, want %d", len(codes), xids)
	}
}
