package allocator

import (
	"fmt"
	"reflect"
	"testing"

	"github.com/gpucdi/gpucdi/gpu"
)

func TestWants(t *testing.T) {
	inv := partitioned(nil, times(2, "3g.20gb"), nil)
	inv.GPUs[1].MIGDevices[0].Placement = gpu.Placement{Start: 0, Size: 4}
	inv.GPUs[1].MIGDevices[1].Placement = gpu.Placement{Start: 4, Size: 4}
	inv.GPUs[1].MIGDevices[1].Fault = fault("lost")
	inv.GPUs[2].Fault = gpu.Gone()
	wants := Wants(Plan(inv, testKind, Policy{MIG: MIGMixed, Rules: replicas(2)}), inv, func(name string) bool { return name == testKind+"=GPU-0" })
	half := shareOf(whole("GPU-0"), TimeSliced, 2)
	first, second := mig("GPU-1", 7, 0, 0, 4), mig("GPU-1", 8, 0, 4, 4)
	want := []Want{
		{Key{"nvidia.com/gpu", "GPU-0::0"}, half, "", Amount{}, gpu.Fault{}, true},
		{Key{"nvidia.com/gpu", "GPU-0::1"}, half, "", Amount{}, gpu.Fault{}, true},
		{Key{"nvidia.com/mig-3g.20gb", "MIG-1.0"}, first, "", Amount{}, gpu.Fault{}, false},
		{Key{"nvidia.com/mig-3g.20gb", "MIG-1.1"}, second, "", Amount{}, fault("lost"), false},
	}
	if !reflect.DeepEqual(wants, want) {
		t.Errorf("got\n%s\nwant\n%s", fmt.Sprintf("%#v", wants), fmt.Sprintf("%#v", want))
	}
	present := []Present{{whole("GPU-0"), gpu.Fault{}}, {first, gpu.Fault{}}, {second, fault("lost")}}
	if got := PresentIn(inv); !reflect.DeepEqual(got, present) {
		t.Errorf("got\n%#v\nwant\n%#v", got, present)
	}
}
