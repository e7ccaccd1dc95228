package allocator

import "testing"

func TestWeakerIsolation(t *testing.T) {
	whole, limited, sliced := Class("").isolation(), MemoryLimited.isolation(), TimeSliced.isolation()
	ceiled := Ceiled.isolation()
	for _, tc := range []struct{ a, b, want Isolation }{
		{ceiled, limited, limited},
		{whole, ceiled, ceiled},
		{whole, whole, whole},
		{whole, limited, limited},
		{limited, sliced, sliced},
		{sliced, whole, sliced},
		{Isolation{}, whole, whole},
		{sliced, Isolation{}, sliced},
		{Isolation{MemoryIsolationDriver, ComputeIsolationHardware}, Isolation{MemoryIsolationHardware, ComputeIsolationTimeSlice}, limited},
	} {
		if got := tc.a.weaker(tc.b); got != tc.want {
			t.Errorf("the weaker of %v and %v is %v, want %v", tc.a, tc.b, got, tc.want)
		}
	}
}

// A device whose limits cannot be enforced is not advertised with the level that its rule requires.
func TestIsolationWithoutLimits(t *testing.T) {
	for _, tc := range []struct {
		device Device
		want   Isolation
	}{
		{Device{Class: Ceiled}, Ceiled.isolation()},
		{Device{Class: Ceiled, Unenforceable: true}, TimeSliced.isolation()},
		{Device{Class: MemoryLimited, Unenforceable: true}, TimeSliced.isolation()},
		{Device{Subdivided: true}, Isolation{MemoryIsolationNone, ComputeIsolationCeiling}},
		{Device{Subdivided: true, Class: TimeSliced}, TimeSliced.isolation()},
	} {
		if got := tc.device.Isolation(); got != tc.want {
			t.Errorf("%+v: %s, want %s", tc.device, got, tc.want)
		}
	}
}

// A GPU instance isolates its pods, but not the compute instances in it.
func TestIsolationOfMIGDevices(t *testing.T) {
	for profile, want := range map[string]Isolation{
		"3g.20gb": Class("").isolation(), "1g.5gb+me": Class("").isolation(),
		"1c.3g.20gb": {MemoryIsolationNone, ComputeIsolationCeiling},
	} {
		weakest, shared := Policy{MIG: MIGMixed}.WeakestIsolation(partitioned([]string{profile}))
		if weakest != want || shared != (want != Class("").isolation()) {
			t.Errorf("%s: %s, shared %t, want %s", profile, weakest, shared, want)
		}
	}
}
