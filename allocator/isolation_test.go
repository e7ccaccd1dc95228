package allocator

import "testing"

func TestWeakerIsolation(t *testing.T) {
	whole, limited, sliced := Class("").Isolation(), MemoryLimited.Isolation(), TimeSliced.Isolation()
	for _, tc := range []struct{ a, b, want Isolation }{
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
