package allocator

import (
	"slices"
	"testing"
	"time"

	"github.com/gpucdi/gpucdi/gpu"
)

const monitorOutlet = "example.com/monitor"

func TestPlanOfMonitor(t *testing.T) {
	of := func(codes ...gpu.FaultCode) *gpu.Inventory {
		inv := &gpu.Inventory{}
		for i, code := range codes {
			inv.GPUs = append(inv.GPUs, gpu.GPU{UUID: "GPU-" + string(rune('a'+i)), Fault: gpu.Fault{Code: code}})
		}
		return inv
	}
	xid := gpu.XIDFault(79)
	for name, tc := range map[string]struct {
		inv   *gpu.Inventory
		ids   int
		fault gpu.FaultCode
	}{
		"healthy GPUs":           {of("", ""), 2, ""},
		"all GPUs with a fault":  {of(xid, xid), 2, ""},
		"gone GPUs":              {of(gpu.FaultGone, gpu.FaultGone), 0, ""},
		"no GPU":                 {of(), 0, ""},
		"driver fault":           {of(xid, gpu.FaultDriver, gpu.FaultGone), 2, gpu.FaultDriver},
		"spec fault":             {of(gpu.FaultSpec, xid), 2, gpu.FaultSpec},
		"GPU without MIG device": {&gpu.Inventory{GPUs: []gpu.GPU{{UUID: "GPU-a", MIG: gpu.MIGEnabled}}}, 0, ""},
	} {
		plan := Plan(tc.inv, testKind, Policy{MIG: MIGMixed, Monitoring: Monitoring{Resource: monitorOutlet, Count: 2}})
		r := plan[len(plan)-1]
		if r.Name != monitorOutlet || len(r.slots) != tc.ids {
			t.Errorf("%s: resource %s with %d devices, want %d", name, r.Name, len(r.slots), tc.ids)
		}
		if tc.ids > 0 && (r.Devices[0].Fault.Code != tc.fault || r.Devices[0].CDINames[0] != testKind+"=monitor") {
			t.Errorf("%s: got device %+v, want fault %q", name, r.Devices[0], tc.fault)
		}
	}
	if plan := Plan(of(""), testKind, Policy{}); len(plan) != 1 {
		t.Errorf("without monitoring: got %d resources, want 1", len(plan))
	}
}

// A container with the monitor does not delay the move of a GPU to another resource. The monitor drains once the config
// lacks its resource, and is not released while a pod holds it.
func TestMonitorDoesNotDelayMoves(t *testing.T) {
	n := newFixture("0")
	monitor := Key{monitorOutlet, MonitorID + "::0"}
	n.o.Wanted = append(n.o.Wanted, Want{Key: monitor, Part: monitorPart, Ready: true})
	n.expect(t, 0, monitor.String()+" available, gpu 0 available")

	n.o.Grants[monitor] = Grant{Seq: 1, Last: at(0)}
	held := []Holding{{Key: monitor, Part: monitorPart, Pod: "pod"}}
	later := at(time.Minute)
	n.o.Checkpoint = &Checkpoint{Requested: later, Received: later, Version: "1", Held: held}
	n.o.Runtime = &Runtime{Requested: later, Received: later, Containers: []Container{{Pod: "pod", Part: monitorPart}}}
	n.o.Wanted = append(slices.Clone(n.o.Wanted[1:]), wantsFor("other", "0")...)
	n.next(time.Minute)
	if len(n.todo.Close) != 0 {
		t.Errorf("entries are closed before the kubelet has processed their withdrawal: %v", n.todo.Close)
	}
	n.next(time.Minute + 3*settle)
	if want := []Closing{{Key: Key{"gpu", "0"}}}; !slices.Equal(n.todo.Close, want) {
		t.Fatalf("got closings %v, want %v", n.todo.Close, want)
	}
	n.o.Grants[Key{"gpu", "0"}] = Grant{Closed: true}
	n.expect(t, time.Minute+4*settle, monitor.String()+" available, gpu 0 released, other 0 available")

	n.o.Wanted = wantsFor("other", "0")
	n.expect(t, time.Hour, monitor.String()+" draining config, other 0 available")
	observe := func(d time.Duration, held []Holding, want ...Closing) {
		t.Helper()
		n.o.Checkpoint = &Checkpoint{Requested: at(d), Received: at(d), Version: d.String(), Held: held}
		n.o.Runtime = &Runtime{Requested: at(d), Received: at(d)}
		n.expect(t, d, monitor.String()+" draining config, other 0 available")
		if !slices.Equal(n.todo.Close, want) {
			t.Errorf("after %v: got closings %v, want %v", d, n.todo.Close, want)
		}
	}
	observe(2*time.Hour, held)
	observe(3*time.Hour, held)
	observe(4*time.Hour, nil)
	observe(5*time.Hour, nil, Closing{Key: monitor, Seq: 1})
}
