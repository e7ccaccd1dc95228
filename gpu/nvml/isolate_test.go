package nvml

import (
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"unicode"

	"github.com/gpucdi/gpucdi/gpu"
)

// eight are GPUs without any fault, as a driver reports them.
func eight() *gpu.Inventory {
	inv := &gpu.Inventory{Driver: gpu.Driver{Version: "580.95.05"}}
	for i := range 8 {
		g := gpu.GPU{
			UUID: fmt.Sprintf("GPU-167534cb-ed86-5a78-8a53-00000000000%d", i), Index: i, Minor: 7 - i, Product: "NVIDIA A100-SXM4-40GB",
			MIG: gpu.MIGEnabled,
		}
		for j := range 2 {
			g.MIGDevices = append(g.MIGDevices, gpu.MIGDevice{
				UUID: fmt.Sprintf("MIG-0a7b5d1e-2222-5a78-8a53-0000000000%d%d", i, j), Index: j, Profile: "1g.5gb+me", GPUInstance: 7 + j,
			})
		}
		inv.GPUs = append(inv.GPUs, g)
	}
	return inv
}

func TestNothingIsIsolatedWithoutACause(t *testing.T) {
	got, want := eight(), eight()
	isolate(got)
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
}

// Whatever a driver reports of a GPU or MIG device, the others are as without it.
func TestIsolate(t *testing.T) {
	const sick = 5
	set := func(change func(g *gpu.GPU)) func(*gpu.Inventory) {
		return func(inv *gpu.Inventory) { change(&inv.GPUs[sick]) }
	}
	uuid := func(uuid string) func(*gpu.Inventory) { return set(func(g *gpu.GPU) { g.UUID = uuid }) }
	minor := func(minor int) func(*gpu.Inventory) { return set(func(g *gpu.GPU) { g.Minor = minor }) }
	part := func(change func(m *gpu.MIGDevice)) func(*gpu.Inventory) {
		return func(inv *gpu.Inventory) { change(&inv.GPUs[sick].MIGDevices[1]) }
	}
	for _, tc := range []struct {
		name       string
		change     func(*gpu.Inventory)
		unreadable []int  // by index
		faulty     []int  // GPUs, by index
		parts      []int  // MIG devices of the sick GPU with a fault, by index
		fault      string // part of each
	}{
		{"an empty UUID", uuid(""), []int{5}, nil, nil, `UUID "" cannot name a device`},
		{"no more than a prefix", uuid("GPU-"), []int{5}, nil, nil, "cannot name a device"},
		{"another prefix", uuid("MIG-167534cb"), []int{5}, nil, nil, "cannot name a device"},
		{"the name of all devices", uuid("all"), []int{5}, nil, nil, `UUID "all" cannot`},
		{"a path", uuid("GPU-../../x"), []int{5}, nil, nil, "cannot name a device"},
		{"a replica", uuid("GPU-a::1"), []int{5}, nil, nil, "cannot name a device"},
		{"another alphabet", uuid("GPU-ä"), []int{5}, nil, nil, "cannot name a device"},
		{"a dash at the end", uuid("GPU-a-"), []int{5}, nil, nil, "cannot name a device"},
		{"control characters", uuid("GPU-\x1b[31m\n"), []int{5}, nil, nil, "UUID \"GPU-\ufffd[31m\" cannot name a device"},
		{"a long UUID", uuid("GPU-" + strings.Repeat("a", 1<<20)), []int{5}, nil, nil, "cannot name a device"},
		{"another GPU's UUID", uuid(eight().GPUs[2].UUID), []int{2, 5}, nil, nil, "is that of 2 devices"},
		{"a negative minor", minor(-2), nil, []int{5}, nil, "minor number -2"},
		{"a huge minor", minor(4294967295), nil, []int{5}, nil, "minor number 4294967295"},
		{"another GPU's minor", minor(eight().GPUs[2].Minor), nil, []int{2, 5}, nil, "/dev/nvidia5 may be either's"},
		{"a minor that was not read", set(func(g *gpu.GPU) { g.Minor, g.Fault = gpu.MinorUnknown, unread(errors.New("not read")) }), nil, []int{5}, nil, "not read"},
		{"minors that were not read", func(inv *gpu.Inventory) {
			for _, i := range []int{2, 5} {
				inv.GPUs[i].Minor, inv.GPUs[i].Fault = gpu.MinorUnknown, unread(errors.New("not read"))
			}
		}, nil, []int{2, 5}, nil, "not read"},
		{"an earlier fault", set(func(g *gpu.GPU) { g.Minor, g.Fault = -2, unread(errors.New("lost")) }), nil, []int{5}, nil, "lost"},
		{"a MIG device's empty UUID", part(func(m *gpu.MIGDevice) { m.UUID = "" }), []int{5}, nil, nil, `MIG device 1: UUID ""`},
		{"a MIG device with a GPU's UUID", part(func(m *gpu.MIGDevice) { m.UUID = "GPU-a" }), []int{5}, nil, nil, "MIG device 1"},
		{"a MIG device's path", part(func(m *gpu.MIGDevice) { m.UUID = "MIG-GPU-a/1/0" }), []int{5}, nil, nil, "MIG device 1"},
		{"two MIG devices of one UUID", part(func(m *gpu.MIGDevice) { m.UUID = eight().GPUs[sick].MIGDevices[0].UUID }), []int{5, 5}, nil, nil, "is that of 2 devices"},
		{"MIG devices of two GPUs with one UUID", part(func(m *gpu.MIGDevice) { m.UUID = eight().GPUs[2].MIGDevices[0].UUID }), []int{2, 5}, nil, nil, "is that of 2 devices"},
		{"two MIG devices of the same instances", part(func(m *gpu.MIGDevice) { m.GPUInstance = 7 }), nil, nil, []int{0, 1}, "GPU instance 7 and compute instance 0 too"},
		{"a profile that cannot name a resource", part(func(m *gpu.MIGDevice) { m.Profile = "1g/5gb" }), nil, nil, []int{1}, `profile "1g/5gb"`},
		{"a profile of control characters", part(func(m *gpu.MIGDevice) { m.Profile = "\x1b" }), nil, nil, []int{1}, "profile \"\ufffd\""},
		{"a long profile", part(func(m *gpu.MIGDevice) { m.Profile = strings.Repeat("1", 1<<20) }), nil, nil, []int{1}, "cannot name a resource"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			inv := eight()
			tc.change(inv)
			isolate(inv)
			var faults []gpu.Fault
			var unreadable, faulty, parts []int
			for _, u := range inv.Unreadable {
				unreadable, faults = append(unreadable, u.Index), append(faults, u.Fault)
			}
			well := eight().GPUs
			for _, g := range inv.GPUs {
				if !g.Fault.None() {
					faulty, faults = append(faulty, g.Index), append(faults, g.Fault)
					if g.Minor != gpu.MinorUnknown {
						t.Errorf("GPU %d has a fault and the minor number %d", g.Index, g.Minor)
					}
				} else if g.Index != sick && !slices.Contains(unreadable, g.Index) && !reflect.DeepEqual(g, well[g.Index]) {
					t.Errorf("GPU %d is %+v, want %+v", g.Index, g, well[g.Index])
				}
				for _, m := range g.MIGDevices {
					if !m.Fault.None() {
						parts, faults = append(parts, m.Index), append(faults, m.Fault)
					}
				}
			}
			if !slices.Equal(unreadable, tc.unreadable) || !slices.Equal(faulty, tc.faulty) || !slices.Equal(parts, tc.parts) {
				t.Errorf("unreadable are %v, faulty %v, faulty MIG devices %v; want %v, %v, %v", unreadable, faulty, parts, tc.unreadable, tc.faulty, tc.parts)
			}
			for _, fault := range faults {
				says := fault.Message
				if fault.Code != gpu.FaultUnreadable || fault.Remedy == "" || !strings.Contains(says, tc.fault) || len(says) > faultLimit || strings.ContainsFunc(says, unprintable) {
					t.Errorf("fault %.200q with the code %q, want %q", fault, fault.Code, tc.fault)
				}
			}
		})
	}
}

func unprintable(r rune) bool { return !unicode.IsPrint(r) }

func TestTextIsBoundedAndPrintable(t *testing.T) {
	bad := "\x1b[31m\n" + strings.Repeat("\x00", 1<<20)
	inv := eight()
	inv.Driver.Version = bad
	inv.GPUs[5].Product, inv.GPUs[5].PCIClass, inv.GPUs[5].Clique = bad, bad, bad
	inv.GPUs[5].VGPU = &gpu.VGPU{HostDriver: bad, HostBranch: bad}
	isolate(inv)
	g := inv.GPUs[5]
	for name, text := range map[string]string{
		"driver version": inv.Driver.Version, "product": g.Product, "PCI class": g.PCIClass, "clique": g.Clique,
		"host driver": g.VGPU.HostDriver, "host branch": g.VGPU.HostBranch,
	} {
		if len(text) > textLimit || text == "" || strings.ContainsFunc(text, unprintable) {
			t.Errorf("the %s has %d bytes: %.100q", name, len(text), text)
		}
	}
}
