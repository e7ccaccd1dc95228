package allocator

import "testing"

func TestWeakerIsolation(t *testing.T) {
	whole, limited, sliced := Class("").Isolation(), MemoryLimited.Isolation(), TimeSliced.Isolation()
	ceiled := Ceiled.Isolation()
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
