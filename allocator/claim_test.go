package allocator

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gpucdi/gpucdi/gpu"
)

// sliceAgent is an agent with one GPU in its ResourceSlice. Its ledger is complete.
type sliceAgent struct {
	*testing.T
	gate   *Gate
	ledger Ledger
	now    time.Time
	o      Observation
	todo   Todo

	sandboxes map[string]time.Time // that the runtime reports
}

func newSliceAgent(t *testing.T) *sliceAgent {
	whole := Part{GPU: gpu0, Extent: ExtentWhole}
	s := &sliceAgent{T: t, now: epoch, ledger: Start(nil, true, epoch)}
	s.gate = NewGate(func() time.Time { return s.now })
	s.o = Observation{
		Wanted:     []Want{{Key: Key{SliceOutlet, gpu0}, Part: whole, Ready: true}},
		Present:    []Present{{Device: whole}},
		Checkpoint: &Checkpoint{Requested: epoch, Received: epoch},
		Runtime:    &Runtime{Requested: epoch, Received: epoch},
	}
	s.next()
	return s
}

// next reconciles a second later, after the runtime has responded if it was queried.
func (s *sliceAgent) next(containers ...Container) {
	s.Helper()
	s.now = s.now.Add(time.Second)
	if s.todo.Runtime {
		s.o.Runtime = &Runtime{Requested: s.now, Received: s.now, Containers: containers, Sandboxes: s.sandboxes}
	}
	for again := true; again; again = len(s.todo.Close) > 0 {
		s.gate.Close(s.todo.Close)
		s.o.Grants, s.o.Claims = s.gate.Grants(), s.gate.Claims()
		for i := range s.o.Claims {
			s.o.Claims[i].Parts = make([]Part, len(s.o.Claims[i].Devices))
		}
		s.ledger, s.todo = Next(s.ledger, s.o, s.now)
		s.gate.Advertise(s.ledger)
	}
}

func claim(uid string) Claim {
	return Claim{UID: uid, Namespace: "default", Name: uid, Pods: []string{"pod-" + uid}, Devices: []string{gpu0}}
}

func (s *sliceAgent) refuses(c Claim, kind error, reason string) {
	s.Helper()
	if err := s.gate.Prepare(c); !errors.Is(err, kind) || !strings.Contains(err.Error(), reason) {
		s.Errorf("Prepare of %s: error %v, want one with %q", c.Name, err, reason)
	}
}

func (s *sliceAgent) prepares(c Claim) {
	s.Helper()
	if err := s.gate.Prepare(c); err != nil {
		s.Errorf("Prepare of %s: %v", c.Name, err)
	}
}

// The next claim gets a device once no container of the previous claim uses it.
func TestClaimWaitsForEarlierContainers(t *testing.T) {
	s := newSliceAgent(t)
	s.prepares(claim("a"))
	again := claim("a")
	again.Pods = []string{"another"}
	s.prepares(again)
	if pods := s.gate.Claims()[0].Pods; !slices.Equal(pods, []string{"another", "pod-a"}) {
		t.Errorf("the claim has pods %v", pods)
	}
	for i := range MaxClaimPods + 1 {
		again.Pods = []string{fmt.Sprint(i)}
		s.prepares(again)
	}
	if pods := s.gate.Claims()[0].Pods; len(pods) != MaxClaimPods || pods[0] != fmt.Sprint(MaxClaimPods) {
		t.Errorf("the claim has %d pods", len(pods))
	}
	again.Pods = []string{"pod-a"}
	s.prepares(again)
	s.refuses(claim("b"), ErrHeld, "prepared for claim default/a")
	s.next()
	s.refuses(claim("b"), ErrHeld, "prepared for claim default/a")
	s.gate.Unprepare("a")
	s.refuses(claim("b"), ErrHeld, "containers of an earlier claim")
	s.next()
	running := Container{Pod: "pod-a", Part: Part{GPU: gpu0, Extent: ExtentWhole}}
	s.next(running)
	s.refuses(claim("b"), ErrHeld, "containers of an earlier claim")
	s.next() // queries the runtime again
	changed := s.gate.Changed()
	s.next()
	select {
	case <-changed:
	default:
		t.Error("Changed is not closed when the device becomes free")
	}
	s.prepares(claim("b"))
}

// A pod that joined a claim may not be known. While a sandbox may be that of such a pod, claims wait until its container is
// visible, a settle after the end of the claim.
func TestClaimThatPodsJoined(t *testing.T) {
	at := func(seconds int) time.Time { return epoch.Add(time.Duration(seconds) * time.Second) }
	whole := Part{GPU: gpu0, Extent: ExtentWhole}
	for _, tc := range []struct {
		name      string
		sandboxes map[string]time.Time
		waits     bool
	}{
		{"none", nil, false},
		{"before the last read", map[string]time.Time{"x": at(9)}, false},
		{"after the last read", map[string]time.Time{"x": at(10)}, true},
		{"at the end of the claim", map[string]time.Time{"x": at(18)}, true},
		{"after the end of the claim", map[string]time.Time{"x": at(19)}, false},
		{"of a known pod", map[string]time.Time{"joined": at(4)}, true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := newSliceAgent(t)
			s.prepares(claim("a"))
			for s.now.Before(at(18)) {
				s.next()
				switch s.now {
				case at(5):
					s.gate.Join(map[string][]string{"a": {"joined"}}, at(4))
				case at(11):
					s.gate.Join(nil, at(10))
				case at(14): // less than a settle before the end of the claim
					s.gate.Join(nil, at(13))
				}
			}
			s.gate.Unprepare("a")
			s.sandboxes = tc.sandboxes
			s.next()
			s.next()
			for s.now.Before(at(18).Add(settle)) {
				if err := s.gate.Prepare(claim("b")); (err != nil) != tc.waits {
					t.Fatalf("Prepare of b after %s: error %v", s.now.Sub(at(18)), err)
				}
				s.next()
			}
			delete(s.sandboxes, "joined")
			for !s.todo.Runtime && tc.waits {
				s.next()
			}
			s.next(Container{Pod: "x", Part: whole})
			if !tc.waits {
				return
			}
			s.refuses(claim("b"), ErrHeld, "containers of an earlier claim")
			s.next()
			s.next()
			s.prepares(claim("b"))
		})
	}
}

// A claim with admin access neither waits for other claims nor makes them wait.
func TestAdminClaims(t *testing.T) {
	s := newSliceAgent(t)
	admin := Claim{UID: "m", Namespace: "default", Name: "m", Pods: []string{"monitor"}, Admin: []string{gpu0}}
	s.prepares(claim("a"))
	s.prepares(admin)
	s.gate.Unprepare("a")
	s.next()
	s.next(Container{Pod: "monitor", Part: Part{GPU: gpu0, Extent: ExtentWhole}})
	s.prepares(claim("b"))
}

func TestPrepareRefuses(t *testing.T) {
	s := newSliceAgent(t)
	s.refuses(Claim{UID: "x", Namespace: "default", Name: "x", Devices: []string{gpu0, "GPU-9"}}, ErrUnknown, "GPU-9")
	s.prepares(claim("a")) // the refused claim got no device
	s.gate.Unprepare("a")
	s.next()
	s.next()
	s.o.Wanted[0].Fault = gpu.Fault{Code: gpu.FaultECC, Message: "2 errors"}
	s.next()
	s.refuses(claim("b"), ErrUnhealthy, "2 errors")
}

// A claim is refused as unhealthy, not as held, if the hardware is gone, even while another claim is prepared.
func TestPrepareRefusesMissingHardware(t *testing.T) {
	for name, tc := range map[string]struct {
		present []Present
		reason  string
	}{
		"gone":          {nil, "the driver no longer lists it"},
		"repartitioned": {[]Present{{Device: Part{GPU: gpu0, Extent: ExtentMIG, Placement: gpu.Placement{Size: 1}}}}, "its GPU was repartitioned"},
	} {
		t.Run(name, func(t *testing.T) {
			s := newSliceAgent(t)
			s.prepares(claim("a"))
			s.o.Wanted, s.o.Present = nil, tc.present
			s.next()
			s.refuses(claim("b"), ErrUnhealthy, tc.reason)
			s.gate.Unprepare("a")
			s.next()
			s.refuses(claim("b"), ErrUnhealthy, tc.reason)
		})
	}
}

// A claim waits for a device that was saved as unavailable and has recovered, until its CDI device is verified.
func TestPrepareWaitsForSpec(t *testing.T) {
	s := newSliceAgent(t)
	s.o.Wanted[0].Ready = false
	saved := Saved{Complete: true, Entries: []SavedEntry{{Key: s.o.Wanted[0].Key, Part: s.o.Wanted[0].Part, State: StateUnavailable}}}
	s.ledger = Start(&saved, true, s.now)
	s.next()
	s.refuses(claim("a"), ErrHeld, "not advertised yet")
}

// A device that leaves the slice is free once it is allocated to no claim, and not before the API server has
// acknowledged a slice without it.
func TestGPULeavesTheSlice(t *testing.T) {
	s := newSliceAgent(t)
	plugin := Key{GPUResource, gpu0}
	s.prepares(claim("a"))
	s.next()
	s.o.Wanted[0].Key = plugin
	s.next()
	s.o.Pool = Pool{Acknowledged: s.now}
	state := func(k Key) State {
		e, _ := s.ledger.Entry(k)
		return e.State
	}
	for range 30 {
		s.next(Container{Pod: "pod-a", Part: Part{GPU: gpu0, Extent: ExtentWhole}})
	}
	if state(Key{SliceOutlet, gpu0}) != StateDraining || state(plugin) != StateWaiting {
		t.Fatalf("while a claim has the GPU, it is %s in the slice and %s in the plugin", state(Key{SliceOutlet, gpu0}), state(plugin))
	}
	s.gate.Unprepare("a")
	reconcileWith := func(a Allocations) { // a is the response of the API server
		for range 8 {
			s.next()
			if s.todo.Allocations {
				a.Requested, a.Received = s.now, s.now
				s.o.Allocations = &a
			}
			s.gate.Close(s.todo.Close)
		}
	}
	for name, a := range map[string]Allocations{
		"it is allocated to a claim that is not prepared": {Claims: map[string]string{gpu0: "default/b"}},
		"the API server does not respond":                 {Absent: true},
	} {
		if reconcileWith(a); state(plugin) != StateWaiting {
			t.Errorf("while %s, the GPU is %s in the plugin", name, state(plugin))
		}
	}
	if reconcileWith(Allocations{}); state(plugin) != StateAvailable {
		t.Errorf("after the claims have ended, the GPU is %s in the plugin", state(plugin))
	}
	if requested, _ := s.gate.Requested(); len(requested) != 0 {
		t.Errorf("%v are requested", requested)
	}
	s.refuses(claim("b"), ErrHeld, "was allocated after it had left the ResourceSlices")
	if requested, until := s.gate.Requested(); !slices.Equal(requested, []string{gpu0}) || !until.Equal(s.now.Add(requestPeriod)) {
		t.Errorf("%v are requested until %s", requested, until)
	}
	unknown := claim("c")
	unknown.Devices = []string{gpu0, "GPU-9"}
	s.refuses(unknown, ErrUnknown, "not in the ResourceSlices of this node; if this persists, delete the pod")
	part := claim("d")
	part.Amounts = map[string]Amount{gpu0: {Cores: 40}}
	s.refuses(part, ErrUnknown, "not in the ResourceSlices")
	if requested, _ := s.gate.Requested(); len(requested) != 0 {
		t.Errorf("claims that cannot be prepared request %v", requested)
	}
}

// A claim gets a device that leaves the slice, if the scheduler allocated it before. It waits for the containers of the
// previous claim only.
func TestClaimForDeviceThatLeavesTheSlice(t *testing.T) {
	s := newSliceAgent(t)
	s.prepares(claim("a"))
	s.next()
	s.gate.Unprepare("a")
	s.o.Wanted[0].Key = Key{GPUResource, gpu0}
	s.o.Allocations = &Allocations{Requested: epoch.Add(time.Hour), Claims: map[string]string{gpu0: "default/b"}}
	s.next()
	s.next(Container{Pod: "pod-a", Part: Part{GPU: gpu0, Extent: ExtentWhole}})
	s.refuses(claim("b"), ErrHeld, "containers of an earlier claim")
	for range 2 * drainInterval / time.Second {
		s.next()
	}
	s.prepares(claim("b"))
}

// shareGPU changes the plan so that claims share the GPU, and reconciles.
func (s *sliceAgent) shareGPU(capacity Amount) {
	s.o.Wanted[0].Part.Share, s.o.Wanted[0].Capacity = Share{Class: MemoryLimited, Unit: ShareMemory}, capacity
	s.o.Pool, s.o.Allocations = Pool{Acknowledged: epoch.Add(time.Hour)}, &Allocations{Requested: epoch.Add(2 * time.Hour)}
	for range 4 {
		s.next()
	}
}

func shareClaim(uid string, cores, memory uint64) Claim {
	c := claim(uid)
	c.Amounts = map[string]Amount{gpu0: {Cores: cores, Memory: memory}}
	return c
}

// Claims share a GPU up to its cores and memory. A claim for all cores, or without an amount, has it to itself.
func TestClaimsShare(t *testing.T) {
	s := newSliceAgent(t)
	s.shareGPU(Amount{Cores: WholeCores, Memory: 80 << 30})
	s.prepares(shareClaim("a", 25, 20<<30))
	s.prepares(shareClaim("b", 25, 20<<30))
	s.refuses(shareClaim("c", 25, 50<<30), ErrHeld, "25 cores and 51200 MiB of 100 cores and 81920 MiB, but the device is prepared for claims default/a, default/b")
	s.refuses(shareClaim("c", 60, 1<<30), ErrHeld, "but the device is prepared for claims")
	s.refuses(shareClaim("c", 100, 1<<30), ErrHeld, "100 cores")
	s.refuses(claim("c"), ErrHeld, "but the device is prepared for claims")
	s.refuses(shareClaim("c", 10, 90<<30), ErrUnhealthy, "its capacity is")
	s.prepares(shareClaim("c", 50, 40<<30))
	s.prepares(shareClaim("c", 50, 40<<30))
	for i, uid := range []string{"a", "b", "c"} {
		s.gate.Unprepare(uid)
		s.refuses(claim("d"), ErrHeld, [...]string{"for claims default/b, default/c", "for claims default/c", "containers of an earlier claim"}[i])
		s.next()
		s.next()
	}
	s.prepares(claim("d"))
	s.refuses(shareClaim("e", 1, 256<<20), ErrHeld, "default/d")
}

// Other claims wait for the part of an ended claim, but neither for other parts nor for that of a canceled claim.
func TestEndedShare(t *testing.T) {
	s := newSliceAgent(t)
	s.shareGPU(Amount{Cores: WholeCores, Memory: 80 << 30})
	s.prepares(shareClaim("a", 40, 20<<30))
	s.prepares(shareClaim("b", 30, 20<<30))
	s.next()
	s.sandboxes = map[string]time.Time{"x": s.now}
	s.gate.Unprepare("a")
	for range 2 {
		s.refuses(shareClaim("c", 31, 1<<30), ErrHeld, "containers of an earlier claim")
		s.prepares(shareClaim("c", 30, 1<<30))
		s.gate.Cancel("c")
		s.next()
	}
	for i := range 20 { // the ends of other claims do not delay that of the part
		s.prepares(shareClaim(fmt.Sprint(i), 1, 1<<30))
		s.gate.Unprepare(fmt.Sprint(i))
		s.next()
	}
	s.prepares(shareClaim("c", 40, 1<<30))
}

// A shared GPU is unused once no other claim is prepared, and the containers of all earlier ones have ended.
func TestUnusedShare(t *testing.T) {
	s := newSliceAgent(t)
	s.shareGPU(Amount{Cores: WholeCores, Memory: 80 << 30})
	unused := func(want bool) {
		t.Helper()
		if got := s.gate.Unused(gpu0, "b"); got != want {
			t.Errorf("unused: %t", got)
		}
	}
	unused(true)
	s.prepares(shareClaim("a", 40, 20<<30))
	unused(false)
	s.next()
	s.sandboxes = map[string]time.Time{"pod-a": s.now}
	s.gate.Unprepare("a")
	unused(false)
	for range 5 {
		s.next()
		unused(false)
	}
	s.prepares(shareClaim("b", 40, 20<<30))
	unused(false)
	s.sandboxes = nil
	s.next()
	s.next()
	unused(true)
	if s.gate.Unused(gpu0, "") {
		t.Error("unused while a claim is prepared")
	}
}

// The pod of an ended claim holds the part of that claim while it has a sandbox, also if it has another claim.
func TestEndedShareOfPodWithTwoClaims(t *testing.T) {
	s := newSliceAgent(t)
	s.shareGPU(Amount{Cores: WholeCores, Memory: 80 << 30})
	a, b := shareClaim("a", 50, 20<<30), shareClaim("b", 50, 20<<30)
	b.Pods = a.Pods
	s.prepares(a)
	s.prepares(b)
	s.next()
	s.sandboxes = map[string]time.Time{"pod-a": epoch}
	s.gate.Unprepare("a")
	s.gate.Join(map[string][]string{"b": a.Pods}, s.now)
	for range 10 {
		s.next()
		s.refuses(shareClaim("c", 50, 20<<30), ErrHeld, "containers of an earlier claim")
	}
	s.sandboxes = nil
	s.next()
	s.next()
	s.prepares(shareClaim("c", 50, 20<<30))
}

// The runtime is queried until only containers of prepared claims use a shared GPU, even if its entry is not dirty:
// Next can prove a draining entry free in the call that makes it available again.
func TestRuntimeQueriedAfterClaimsEnded(t *testing.T) {
	now := time.Now()
	for _, tc := range []struct {
		ended []EndedClaim
		want  bool
	}{{nil, false}, {[]EndedClaim{{At: now}}, true}} {
		n := &next{o: &Observation{Runtime: &Runtime{Requested: now.Add(-time.Second)}}, now: now}
		n.add([]Entry{{Key: Key{SliceOutlet, gpu0}, State: StateAvailable, ended: tc.ended,
			Part: Part{GPU: gpu0, Extent: ExtentWhole, Share: Share{Class: MemoryLimited, Unit: ShareMemory}}}})
		if got := n.todo(); got.Runtime != tc.want {
			t.Errorf("ended %v: the runtime is queried %t, want %t", tc.ended, got.Runtime, tc.want)
		}
	}
}

// The limit of a pod on a GPU is the sum of the memory of its claims. Claims of other pods do not count.
func TestMemoryLimitsOfClaims(t *testing.T) {
	s := newSliceAgent(t)
	s.shareGPU(Amount{Cores: WholeCores, Memory: 80 << 30})
	of := func(pod string, c Claim) Claim { c.Pods = []string{pod}; return c }
	s.prepares(of("p", shareClaim("a", 25, 20<<30)))
	s.prepares(of("p", shareClaim("b", 25, 10<<30)))
	s.prepares(of("q", shareClaim("c", 50, 1<<30)))
	for pod, want := range map[string]uint64{"p": 30 << 30, "q": 1 << 30, "r": 0} {
		if got := s.gate.MemoryLimits(pod); got[gpu0] != want || len(got) != min(1, int(want)) {
			t.Errorf("pod %s: %v, want %d", pod, got, want)
		}
	}
	s.gate.Unprepare("b")
	if got := s.gate.MemoryLimits("p"); got[gpu0] != 20<<30 {
		t.Errorf("after one of two claims ended: %v", got)
	}
}

// A claim has no limit if it has the whole GPU, or if the GPU is shared without limits. If the sharing of the GPU is
// unknown, it has a limit.
func TestClaimsWithoutLimits(t *testing.T) {
	for _, tc := range []struct {
		name  string
		part  Part
		claim Claim
		want  uint64
	}{
		{"limited", Part{GPU: gpu0, Extent: ExtentWhole, Share: Share{Class: MemoryLimited, Unit: ShareMemory}}, shareClaim("a", 99, 20<<30), 20 << 30},
		{"all cores", Part{GPU: gpu0, Extent: ExtentWhole, Share: Share{Class: MemoryLimited, Unit: ShareMemory}}, shareClaim("a", 100, 20<<30), 0},
		{"no amount", Part{GPU: gpu0, Extent: ExtentWhole, Share: Share{Class: MemoryLimited, Unit: ShareMemory}}, claim("a"), 0},
		{"level any", Part{GPU: gpu0, Extent: ExtentWhole, Share: Share{Class: TimeSliced, Unit: ShareMemory}}, shareClaim("a", 99, 20<<30), 0},
		{"MIG device", Part{GPU: gpu0, Extent: ExtentMIG}, shareClaim("a", 99, 20<<30), 0},
		{"unknown", Part{}, shareClaim("a", 99, 20<<30), 20 << 30},
	} {
		g := NewGate(time.Now)
		n := &next{}
		n.add([]Entry{{Key: Key{SliceOutlet, gpu0}, State: StateAvailable, Part: tc.part}})
		g.Advertise(n.Ledger)
		tc.claim.Pods = []string{"p"}
		g.Restore(tc.claim)
		if got := g.MemoryLimits("p")[gpu0]; got != tc.want {
			t.Errorf("%s: %d, want %d", tc.name, got, tc.want)
		}
	}
}

// Several requests of a claim can get the same shared GPU. Their amounts add up.
func TestClaimWithTwoShares(t *testing.T) {
	s := newSliceAgent(t)
	s.shareGPU(Amount{Cores: WholeCores, Memory: 80 << 30})
	twice := shareClaim("a", 60, 40<<30) // two requests for 30 cores and 20 GiB each
	twice.Devices = []string{gpu0, gpu0}
	s.prepares(twice)
	s.refuses(shareClaim("b", 50, 1<<30), ErrHeld, "but the device is prepared for claims default/a")
	s.prepares(shareClaim("b", 40, 1<<30))
	if held := HeldByClaims(s.gate.Claims()); held[gpu0] != (Amount{Cores: 100, Memory: 41 << 30}) {
		t.Errorf("held %+v", held)
	}
}

// The next claim waits for the containers of claims that were unprepared, but not for those of prepared claims.
func TestShareWaitsForEarlierContainers(t *testing.T) {
	s := newSliceAgent(t)
	s.shareGPU(Amount{Cores: WholeCores, Memory: 80 << 30})
	whole := Part{GPU: gpu0, Extent: ExtentWhole}
	s.prepares(shareClaim("a", 50, 1<<30))
	s.prepares(shareClaim("b", 50, 1<<30))
	s.next()
	s.gate.Unprepare("a")
	both := []Container{{Pod: "pod-a", Part: whole}, {Pod: "pod-b", Part: whole}}
	s.next(both...)
	s.next(both...)
	s.next(both...)
	s.refuses(shareClaim("c", 50, 1<<30), ErrHeld, "containers of an earlier claim")
	s.next(both[1])
	s.next(both[1])
	s.prepares(shareClaim("c", 50, 1<<30))
}

// A GPU is shared only once no claim holds all of it under the earlier config.
func TestSharingWaits(t *testing.T) {
	s := newSliceAgent(t)
	s.prepares(claim("a"))
	s.next()
	s.shareGPU(Amount{Cores: WholeCores, Memory: 80 << 30})
	if e, _ := s.ledger.Entry(Key{SliceOutlet, gpu0}); e.State != StateDraining {
		t.Errorf("the entry is %s", e.State)
	}
	s.gate.Unprepare("a")
	for range 4 {
		s.next()
	}
	if e, _ := s.ledger.Entry(Key{SliceOutlet, gpu0}); e.State != StateAvailable || !e.shared() {
		t.Errorf("the entry is %s, shared %v", e.State, e.shared())
	}
	s.prepares(shareClaim("b", 50, 1<<30))
	s.prepares(shareClaim("c", 50, 1<<30))
}

// A GPU stops being shared once all claims with shares of it under the earlier config, and their containers, have ended.
// Until then, no claim gets all of it. A claim to which the scheduler allocated a share before the config changed
// gets its share.
func TestSharingEnds(t *testing.T) {
	s := newSliceAgent(t)
	s.shareGPU(Amount{Cores: WholeCores, Memory: 80 << 30})
	s.prepares(shareClaim("a", 50, 1<<30))
	s.prepares(shareClaim("b", 25, 1<<30))
	s.next()
	whole := Part{GPU: gpu0, Extent: ExtentWhole}
	s.o.Wanted[0].Part, s.o.Wanted[0].Capacity = whole, Amount{}
	drains := func(reason string, pods ...string) {
		t.Helper()
		var containers []Container
		for _, pod := range pods {
			containers = append(containers, Container{Pod: pod, Part: whole})
		}
		for range 4 {
			s.next(containers...)
		}
		if e, _ := s.ledger.Entry(Key{SliceOutlet, gpu0}); e.State != StateDraining || !e.shared() {
			t.Errorf("the entry is %s, shared %v", e.State, e.shared())
		}
		s.refuses(claim("c"), ErrHeld, reason)
	}
	drains("prepared for claims default/a, default/b", "pod-a", "pod-b")
	s.gate.Unprepare("a")
	drains("prepared for claims default/b", "pod-b")
	s.prepares(shareClaim("late", 50, 1<<30))
	s.gate.Unprepare("b")
	drains("prepared for claims default/late", "pod-late")
	s.gate.Unprepare("late")
	drains("containers of an earlier claim may still use it", "pod-late")
	for range 4 {
		s.next()
	}
	if e, _ := s.ledger.Entry(Key{SliceOutlet, gpu0}); e.State != StateAvailable || e.shared() || e.Capacity != (Amount{}) {
		t.Errorf("the entry is %s, shared %v, with capacity %s", e.State, e.shared(), e.Capacity)
	}
	s.prepares(claim("c"))
	s.refuses(claim("d"), ErrHeld, "prepared for claim default/c")
}
