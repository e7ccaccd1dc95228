package allocator

import (
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gpucdi/gpucdi/gpu"
)

// stage is an inventory and its plan.
type stage struct {
	inv  *gpu.Inventory
	plan []*Resource
}

// after returns the offers after a sequence of stages. held are the devices that pods hold from the first stage on,
// such as "gpu GPU-0". All other devices are proved free when they drain.
func after(t *testing.T, held []string, stages ...stage) []*Resource {
	t.Helper()
	now := time.Unix(1e9, 0)
	ledger := Start(&Saved{Complete: true}, true, now)
	gate := NewGate(func() time.Time { return now })
	var last stage
	for i, s := range stages {
		last = s
		for range 3 { // withdraw, close, offer
			var todo Todo
			seen := Observation{Wanted: Wants(s.plan, s.inv, func(string) bool { return true }), Present: PresentIn(s.inv), Grants: gate.Grants()}
			seen.Runtime = &Runtime{Requested: now, Received: now}
			ledger, todo = Next(ledger, seen, now)
			gate.Advertise(ledger)
			gate.Close(todo.Close)
			now = now.Add(3 * settle)
		}
		for _, one := range held {
			outlet, id, _ := strings.Cut(one, " ")
			if err := gate.Allocate("nvidia.com/"+outlet, []string{id}, true); i == 0 && err != nil {
				t.Fatal(err)
			}
		}
	}
	return Offers(last.plan, ledger, last.inv, testKind)
}

func TestOffers(t *testing.T) {
	mixed := func(inv *gpu.Inventory) stage { return stage{inv, Plan(inv, testKind, Policy{MIG: MIGMixed})} }
	single := func(inv *gpu.Inventory) stage { return stage{inv, Plan(inv, testKind, Policy{MIG: MIGSingle})} }
	sharedBy := func(n int) stage {
		return stage{partitioned(nil), Plan(partitioned(nil), testKind, Policy{MIG: MIGNone, Rules: replicas(n)})}
	}
	limitedTo := func(n int) stage {
		inv := limitable(1)
		return stage{inv, Plan(inv, testKind, Policy{MIG: MIGNone, Rules: limited(n, "")})}
	}
	repartitioned, gone := partitioned(times(2, "3g.20gb"), nil), partitioned(nil, nil)
	repartitioned.GPUs[0].MIGDevices[1].GPUInstance = 1
	gone.GPUs[1].Fault = gpu.Gone()
	for _, tc := range []struct {
		name          string
		before, now   stage
		held          string
		want          string
		wantIfNotHeld string
	}{
		{"no change", mixed(partitioned(nil, nil)), mixed(partitioned(nil, nil)), "gpu GPU-0", "gpu: GPU-0 GPU-1", "gpu: GPU-0 GPU-1"},
		{"a GPU is gone", mixed(partitioned(nil, nil)), mixed(gone), "gpu GPU-1", "gpu: GPU-0 GPU-1!", "gpu: GPU-0 GPU-1!"},
		{
			"MIG mode is disabled", mixed(partitioned(times(1, "1g.5gb"), nil)), mixed(partitioned(nil, nil)), "mig-1g.5gb MIG-0.0",
			"gpu: GPU-0! GPU-1, mig-1g.5gb: MIG-0.0!", "gpu: GPU-0 GPU-1, mig-1g.5gb: MIG-0.0!",
		},
		{
			"MIG mode is enabled", mixed(partitioned(nil, nil)), mixed(partitioned(times(2, "3g.20gb"), nil)), "gpu GPU-0",
			"gpu: GPU-1 GPU-0!, mig-3g.20gb: MIG-0.0! MIG-0.1!", "gpu: GPU-1 GPU-0!, mig-3g.20gb: MIG-0.0 MIG-0.1",
		},
		{ // The new MIG-0.0 has the instance of the old one, and so its device nodes. The new MIG-0.1 has another instance.
			"a GPU is repartitioned", mixed(partitioned(times(2, "1g.5gb"), nil)), mixed(repartitioned), "mig-1g.5gb MIG-0.0",
			"gpu: GPU-1, mig-3g.20gb: MIG-0.0! MIG-0.1, mig-1g.5gb: MIG-0.0! MIG-0.1!",
			"gpu: GPU-1, mig-3g.20gb: MIG-0.0 MIG-0.1, mig-1g.5gb: MIG-0.0! MIG-0.1!",
		},
		{
			"the strategy changes", single(partitioned(times(1, "1g.5gb"))), mixed(partitioned(times(1, "1g.5gb"))), "gpu MIG-0.0",
			"gpu: MIG-0.0!, mig-1g.5gb: MIG-0.0!", "gpu: MIG-0.0!, mig-1g.5gb: MIG-0.0",
		},
		{"more replicas", sharedBy(2), sharedBy(3), "gpu GPU-0::1", "gpu: GPU-0::0 GPU-0::1! GPU-0::2!", "gpu: GPU-0::0 GPU-0::1 GPU-0::2"},
		{"fewer replicas", sharedBy(3), sharedBy(2), "gpu GPU-0::2", "gpu: GPU-0::0 GPU-0::1! GPU-0::2!", "gpu: GPU-0::0 GPU-0::1 GPU-0::2!"},
		{"larger parts", limitedTo(3), limitedTo(2), "gpu GPU-0::2", "gpu: GPU-0::0 GPU-0::1! GPU-0::2!", "gpu: GPU-0::0 GPU-0::1 GPU-0::2!"},
		{"newly limited", sharedBy(2), limitedTo(2), "gpu GPU-0::1", "gpu: GPU-0::0! GPU-0::1!", "gpu: GPU-0::0 GPU-0::1"},
		{"no longer limited", limitedTo(2), sharedBy(2), "gpu GPU-0::1", "gpu: GPU-0::0! GPU-0::1!", "gpu: GPU-0::0 GPU-0::1"},
		{"no longer shared", sharedBy(2), mixed(partitioned(nil)), "gpu GPU-0::1", "gpu: GPU-0! GPU-0::0! GPU-0::1!", "gpu: GPU-0 GPU-0::0! GPU-0::1!"},
		{"newly shared", mixed(partitioned(nil)), sharedBy(2), "gpu GPU-0", "gpu: GPU-0::0! GPU-0::1! GPU-0!", "gpu: GPU-0::0 GPU-0::1 GPU-0!"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if got := strings.Join(slots(after(t, []string{tc.held}, tc.before, tc.now)), ", "); got != tc.want {
				t.Errorf("while %s is held: %s, want %s", tc.held, got, tc.want)
			}
			if got := strings.Join(slots(after(t, nil, tc.before, tc.now)), ", "); got != tc.wantIfNotHeld {
				t.Errorf("while none is held: %s, want %s", got, tc.wantIfNotHeld)
			}
		})
	}
}

func TestOffersHaveReasons(t *testing.T) {
	before, now := partitioned(nil, times(1, "1g.5gb"), nil), partitioned(times(1, "1g.5gb"), times(1, "1g.5gb"), nil)
	now.GPUs[2].Fault, now.GPUs[1].MIGDevices[0].Fault = gpu.Gone(), fault("lost")
	plan := func(inv *gpu.Inventory) stage { return stage{inv, Plan(inv, testKind, Policy{MIG: MIGMixed})} }
	reasons := map[string]string{} // by device ID
	faults := map[string]gpu.FaultCode{}
	for _, r := range after(t, []string{"gpu GPU-0", "gpu GPU-2"}, plan(before), plan(now)) {
		for _, d := range r.Devices {
			reasons[d.ID], faults[d.ID] = d.Reason, d.Fault.Code
			if d.Healthy() == (d.Reason != "" || !d.Fault.None()) || d.Since.IsZero() || !d.Fault.None() && d.Fault.Since.IsZero() {
				t.Errorf("%+v has no time, or is unhealthy without a reason or fault, or healthy with one", d)
			}
			if !slices.Equal(d.CDINames, []string{testKind + "=" + d.ID}) || d.Index == "" {
				t.Errorf("%+v has a wrong CDI device name or no index", d)
			}
		}
	}
	for id, want := range map[string]string{
		"GPU-0": "its GPU was repartitioned", "MIG-0.0": "waits until no pod holds GPU-0 of nvidia.com/gpu", "GPU-2": "", "MIG-1.0": "",
	} {
		if reasons[id] != want {
			t.Errorf("%s: %q, want %q", id, reasons[id], want)
		}
	}
	if want := map[string]gpu.FaultCode{"GPU-0": "", "MIG-0.0": "", "GPU-2": gpu.FaultGone, "MIG-1.0": gpu.FaultUnresponsive}; !maps.Equal(faults, want) {
		t.Errorf("got fault codes %q, want %q", faults, want)
	}
}

// A replica that does not fit on its device together with the existing shares waits until draining ones are released.
func TestOffersOfWaitingReplica(t *testing.T) {
	sharedBy := func(n int) stage {
		return stage{partitioned(nil), Plan(partitioned(nil), testKind, Policy{MIG: MIGNone, Rules: replicas(n)})}
	}
	var got []string
	for _, d := range after(t, []string{"gpu GPU-0::1"}, sharedBy(2), sharedBy(3))[0].Devices {
		got = append(got, strings.Join(d.Replicas, " ")+": "+d.Reason)
	}
	want := []string{"GPU-0::0: ", "GPU-0::1: the config no longer advertises it in this way",
		"GPU-0::2: waits until no pod holds a replica of GPU-0 of nvidia.com/gpu"}
	slices.Sort(got)
	if !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

// The reason of a device that moves to another outlet names that outlet.
func TestOffersOfMovingDevices(t *testing.T) {
	inv := partitioned(nil)
	plan := func(mode Mode) stage { return stage{inv, Plan(inv, testKind, Policy{MIG: MIGNone, Mode: mode})} }
	var got []string
	for _, r := range after(t, []string{"gpu GPU-0"}, plan(ModeDevicePlugin), plan(ModeDRA)) {
		for _, d := range r.Devices {
			got = append(got, r.Name+": "+d.Reason)
		}
	}
	want := []string{"nvidia.com/gpu: moving to the ResourceSlices", "slice: waits until no pod holds GPU-0 of nvidia.com/gpu"}
	if !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

// A waiting device has the fault of the plan, which explains why it does not become available.
func TestOffersOfFaultyWaitingDevice(t *testing.T) {
	before, now := partitioned(nil), partitioned(times(1, "1g.5gb"))
	now.GPUs[0].MIGDevices[0].Fault = fault("lost")
	plan := func(inv *gpu.Inventory) stage { return stage{inv, Plan(inv, testKind, Policy{MIG: MIGMixed})} }
	found := 0
	for _, r := range after(t, []string{"gpu GPU-0"}, plan(before), plan(now)) {
		for _, d := range r.Devices {
			if d.ID != "MIG-0.0" {
				continue
			}
			found++
			if d.State != StateWaiting || !d.Fault.Same(fault("lost")) || d.Fault.Since.IsZero() || d.Healthy() {
				t.Errorf("%+v", d)
			}
		}
	}
	if found != 1 {
		t.Errorf("%d devices, want 1", found)
	}
}

func TestOffersKeepAffinity(t *testing.T) {
	inv, more := topologies["8 in bridged pairs"](), topologies["8 in bridged pairs"]()
	more.GPUs = append(more.GPUs, gpu.GPU{UUID: "GPU-8"})
	plan := func(inv *gpu.Inventory) stage { return stage{inv, Plan(inv, testKind, Policy{MIG: MIGNone})} }
	r := after(t, []string{"gpu GPU-8"}, plan(more), plan(inv))[0]
	if got, err := r.Prefer(append(all(8), "GPU-8"), nil, 2); err != nil || !slices.Equal(got, gpus(0, 4)) {
		t.Errorf("Prefer = %v, %v; want the first pair, 0 and 4", got, err)
	}
}

// An ID that is known only from evidence is listed.
func TestOffersOfUnknownEntries(t *testing.T) {
	inv, now := partitioned(nil), time.Unix(1e9, 0)
	plan := Plan(inv, testKind, Policy{MIG: MIGNone})
	held := func(outlet, id string) Holding { return Holding{Key: Key{outlet, id}, Pod: "uid"} }
	ledger, _ := Next(Start(nil, true, now), Observation{
		Wanted: Wants(plan, inv, func(string) bool { return true }), Present: PresentIn(inv),
		Checkpoint: &Checkpoint{Requested: now, Received: now, Held: []Holding{
			held("nvidia.com/mig-7g.40gb", "MIG-gone"), held("nvidia.com/gpu.shared", "GPU-0::1"), held(GPUResource, "GPU-7::1"),
		}},
	}, now)
	got := Offers(plan, ledger, inv, testKind)
	if got, want := strings.Join(slots(got), ", "), "gpu: GPU-0! GPU-7::1!, gpu.shared: GPU-0::1!, mig-7g.40gb: MIG-gone!"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	if d := got[0].Devices[1]; d.ID != "GPU-7" || d.NUMANode != gpu.NUMAUnknown || d.Fault.Code != gpu.FaultGone {
		t.Errorf("%+v", d)
	}
}

func TestChanges(t *testing.T) {
	before, now := partitioned(times(2, "1g.5gb"), nil), partitioned(times(3, "1g.5gb"), nil)
	now.GPUs[0].MIGDevices[1].Fault = fault("lost")
	plan := func(inv *gpu.Inventory) stage { return stage{inv, Plan(inv, testKind, Policy{MIG: MIGMixed})} }
	var got []string
	for _, c := range Changes(after(t, nil, plan(before)), after(t, nil, plan(before), plan(now))) {
		got = append(got, strings.Join([]string{c.Now.ID, string(c.Before.State), c.Now.Fault.Message}, " "))
	}
	if want := []string{"MIG-0.1 available lost", "MIG-0.2  "}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestChangesReportSharedDeviceOnce(t *testing.T) {
	inv, unhealthy := partitioned(nil, nil), partitioned(nil, nil)
	unhealthy.GPUs[1].Fault = fault("lost")
	plan := func(inv *gpu.Inventory) stage {
		return stage{inv, Plan(inv, testKind, Policy{MIG: MIGNone, Rules: replicas(9)})}
	}
	changes := Changes(after(t, nil, plan(inv)), after(t, nil, plan(inv), plan(unhealthy)))
	if len(changes) != 1 || changes[0].Before.State != StateAvailable || changes[0].Now.ID != "GPU-1" {
		t.Errorf("got %+v", changes)
	}
}
