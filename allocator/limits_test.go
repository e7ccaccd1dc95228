package allocator

import (
	"errors"
	"fmt"
	"maps"
	"strings"
	"testing"
	"time"

	"github.com/gpucdi/gpucdi/gpu"
)

func limited(n int, level Level) Rules {
	return Rules{{Name: GPUResource, Replicas: n, Limits: LimitMemory, Level: level}}
}

func ceiled(n int, level Level) Rules {
	rules := limited(n, level)
	rules[0].Limits, rules[0].FailRequestsGreaterThanOne = LimitMemoryAndCompute, true
	return rules
}

// limitable returns GPUs of 80 GiB whose memory can be limited.
func limitable(n int) *gpu.Inventory {
	inv := partitioned(make([][]string, n)...)
	for i := range inv.GPUs {
		inv.GPUs[i].MemoryLimits, inv.GPUs[i].MemoryBytes = gpu.MemoryLimitsSupported, 80<<30
	}
	return inv
}

// A GPU whose limits cannot be enforced is unhealthy, or shared without limits if its rule permits that.
func TestEnforcementOfLimits(t *testing.T) {
	for _, tc := range []struct {
		name    string
		limits  gpu.MemoryLimits
		rules   Rules
		class   Class
		problem string
	}{
		{"supported", gpu.MemoryLimitsSupported, limited(4, ""), MemoryLimited, ""},
		{"supported, any level", gpu.MemoryLimitsSupported, limited(4, LevelAny), MemoryLimited, ""},
		{"old driver", gpu.MemoryLimitsOldDriver, limited(4, ""), MemoryLimited, "the driver is older than 615; install a newer one; or set level: any"},
		{"old driver, any level", gpu.MemoryLimitsOldDriver, limited(4, LevelAny), TimeSliced, ""},
		{"cgroup v1", gpu.MemoryLimitsCgroupV1, limited(4, ""), MemoryLimited, "the node uses cgroup v1; boot it with cgroup v2; or set level: any"},
		{"cgroup v1, any level", gpu.MemoryLimitsCgroupV1, limited(4, LevelAny), TimeSliced, ""},
		{"no pod cgroups", gpu.MemoryLimitsNoPods, limited(4, ""), MemoryLimited, "pods have no cgroups; start the kubelet with cgroupsPerQOS: true and a cgroupRoot of at most one level in its config; or set level: any"},
		{"no pod cgroups, any level", gpu.MemoryLimitsNoPods, limited(4, LevelAny), TimeSliced, ""},
		{"unknown", "", limited(4, ""), MemoryLimited, "the driver does not report whether it can be"},
		{"unknown, any level", "", limited(4, LevelAny), TimeSliced, ""},
		{"no limits", gpu.MemoryLimitsSupported, replicas(4), TimeSliced, ""},
		{"compute, too", gpu.MemoryLimitsSupported, ceiled(4, ""), Ceiled, ""},
		{"compute, too, old driver", gpu.MemoryLimitsOldDriver, ceiled(4, ""), Ceiled, "the driver is older than 615; install a newer one; or set level: any"},
		{"compute, too, any level", gpu.MemoryLimitsOldDriver, ceiled(4, LevelAny), TimeSliced, ""},
		{"not shared", gpu.MemoryLimitsSupported, nil, "", ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			inv := limitable(2)
			inv.GPUs[1].MemoryLimits = tc.limits
			resource := Plan(inv, testKind, Policy{MIG: MIGNone, Rules: tc.rules})[0]
			d := resource.Devices[1]
			if d.Class != tc.class || (d.Fault.Code == gpu.FaultConfig) != (tc.problem != "") || !strings.Contains(d.Fault.String(), tc.problem) {
				t.Errorf("got class %q and fault %q, want %q and %q", d.Class, d.Fault, tc.class, tc.problem)
			}
			if d := resource.Devices[0]; !d.Healthy() {
				t.Errorf("the other GPU has the fault %q", d.Fault)
			}
			if want := tc.rules != nil && tc.rules[0].Limits != ""; resource.MemoryLimited() != want {
				t.Errorf("the resource is limited: %t, want %t", !want, want)
			}
		})
	}
}

// The memory of replicas of MIG devices cannot be limited.
func TestLimitsOfMIGDevices(t *testing.T) {
	inv := partitioned(times(1, "1g.5gb"))
	inv.GPUs[0].MemoryLimits = gpu.MemoryLimitsMIG
	rules := Rules{{Name: "nvidia.com/mig-1g.5gb", Replicas: 2, Limits: LimitMemory}}
	d := Plan(inv, testKind, Policy{MIG: MIGMixed, Rules: rules})[1].Devices[0]
	if !strings.Contains(d.Fault.String(), "the GPU is in MIG mode") {
		t.Errorf("fault %q, want one with the MIG mode", d.Fault)
	}
}

// The percentages of all replicas of a GPU do not exceed the whole.
func TestPercentageOfReplicas(t *testing.T) {
	for count, want := range map[int]int{2: 50, 3: 33, 4: 25, 100: 1} {
		if got := (Share{Class: Ceiled, Count: count}).Percentage(); got != want {
			t.Errorf("one of %d replicas: %d %%, want %d %%", count, got, want)
		}
	}
}

// A GPU is unhealthy if the limit of a replica would be below the minimum of the driver. MPS uses 1 GiB.
func TestLimitsOfSmallMemory(t *testing.T) {
	for memory, healthy := range map[uint64]bool{0: false, mpsMemory: false, mpsMemory + 2*gpu.MinMemoryLimit - 1: false, mpsMemory + 2*gpu.MinMemoryLimit: true} {
		inv := limitable(1)
		inv.GPUs[0].MemoryBytes = memory
		if d := Plan(inv, testKind, Policy{MIG: MIGNone, Rules: ceiled(2, "")})[0].Devices[0]; d.Healthy() != healthy {
			t.Errorf("%d bytes with MPS: fault %q", memory, d.Fault)
		}
	}
	for memory, healthy := range map[uint64]bool{0: false, 2*gpu.MinMemoryLimit - 1: false, 2 * gpu.MinMemoryLimit: true} {
		inv := limitable(1)
		inv.GPUs[0].MemoryBytes = memory
		if d := Plan(inv, testKind, Policy{MIG: MIGNone, Rules: limited(2, "")})[0].Devices[0]; d.Healthy() != healthy {
			t.Errorf("%d bytes: fault %q", memory, d.Fault)
		}
	}
}

func TestMemoryLimits(t *testing.T) {
	inv := limitable(2)
	quarter, third := shareOf(whole("GPU-0"), MemoryLimited, 4), shareOf(whole("GPU-1"), MemoryLimited, 3)
	for name, tc := range map[string]struct {
		parts []Part
		want  map[string]uint64
	}{
		"none":           {nil, map[string]uint64{}},
		"one":            {[]Part{quarter}, map[string]uint64{"GPU-0": 20 << 30}},
		"two of one GPU": {[]Part{quarter, quarter}, map[string]uint64{"GPU-0": 40 << 30}},
		"of two GPUs":    {[]Part{quarter, third}, map[string]uint64{"GPU-0": 20 << 30, "GPU-1": 80 << 30 / 3}},
		"of two sizes":   {[]Part{quarter, shareOf(whole("GPU-0"), MemoryLimited, 2)}, map[string]uint64{"GPU-0": 60 << 30}},
		"ceiled":         {[]Part{shareOf(whole("GPU-0"), Ceiled, 4)}, map[string]uint64{"GPU-0": 79 << 30 / 4}},
		"not limited":    {[]Part{whole("GPU-1"), shareOf(whole("GPU-0"), TimeSliced, 4), {}}, map[string]uint64{}},
	} {
		if got, err := MemoryLimits(inv, tc.parts); err != nil || !maps.Equal(got, tc.want) {
			t.Errorf("%s: %v, %v; want %v", name, got, err, tc.want)
		}
	}
	if got, err := MemoryLimits(inv, []Part{shareOf(whole("GPU-9"), MemoryLimited, 2)}); err == nil {
		t.Errorf("a GPU that the driver does not report: %v, want an error", got)
	}
	claims := Policy{Rules: Rules{{Share: ShareMemory}}}
	if got := fmt.Sprint(Policy{Rules: limited(2, "")}.LimitsMemory(""), Policy{Rules: replicas(2)}.LimitsMemory(""),
		claims.LimitsMemory(""), claims.LimitsMemory(GPUResource), Policy{Rules: ceiled(2, "")}.LimitsMemory(GPUResource)); got != "true false true false true" {
		t.Errorf("policies limit memory: %s, want true false true false true", got)
	}
}

// A replica with limited memory is granted only if its limit will be set before a container starts.
func TestGateRequiresLimiting(t *testing.T) {
	g := NewGate(time.Now)
	key := Key{GPUResource, "GPU-0::0"}
	n := &next{}
	n.add([]Entry{{Key: key, State: StateAvailable, Part: shareOf(whole("GPU-0"), MemoryLimited, 4), accepts: true}})
	g.Advertise(n.Ledger)
	if err := g.Allocate(key.Outlet, []string{key.ID}, false); !errors.Is(err, ErrUnhealthy) || len(g.Grants()) > 0 {
		t.Errorf("without a limit: error %v, grants %v", err, g.Grants())
	}
	if err := g.Allocate(key.Outlet, []string{key.ID}, true); err != nil {
		t.Error(err)
	}
}

// If a pod held a replica when an agent without saved state started, it is unknown whether the replica is limited.
// Until the pod ends, limited replicas are not available, and its containers get a limit when they start.
func TestAdoptedReplicasMayBeUnlimited(t *testing.T) {
	n := newFixture("0")
	n.ledger = Start(nil, false, at(0))
	half := shareOf(whole("0"), MemoryLimited, 2)
	n.o.Wanted = []Want{{Key: Key{"gpu", "0::0"}, Part: half, Ready: true}, {Key: Key{"gpu", "0::1"}, Part: half, Ready: true}}
	held := []Holding{{Key: Key{"gpu", "0::0"}, Part: half, Pod: "p"}}
	n.o.Checkpoint = &Checkpoint{Requested: at(1), Received: at(1), Version: "1", Held: held, Registered: map[Key]bool{{"gpu", "0::0"}: true, {"gpu", "0::1"}: true}}
	n.next(1)
	n.o.Checkpoint.Requested = at(settle)
	n.expect(t, settle, "gpu 0::0 draining unknown, gpu 0::1 draining unknown")
	e, _ := n.ledger.Entry(Key{"gpu", "0::0"})
	if limits, err := MemoryLimits(inventoryOf("0"), []Part{e.Part}); err != nil || limits["0"] != 40<<30 || !n.ledger.LimitsMemory("gpu") {
		t.Errorf("part %+v, limits %v, %v", e.Part, limits, err)
	}
	// The saved state keeps PerhapsLimited, and an observation without the checkpoint does not change it.
	saved := n.ledger.Save()
	n.ledger = Start(&saved, false, at(2*settle))
	n.o.Checkpoint = nil
	n.next(2 * settle)
	if e, _ := n.ledger.Entry(Key{"gpu", "0::0"}); e.Part.Share.Class != PerhapsLimited || e.State != StateDraining {
		t.Errorf("after a restart: %+v", e)
	}
}

// inventoryOf returns one GPU of 80 GiB.
func inventoryOf(uuid string) *gpu.Inventory {
	return &gpu.Inventory{GPUs: []gpu.GPU{{UUID: uuid, MemoryBytes: 80 << 30}}}
}
