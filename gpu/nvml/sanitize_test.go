package nvml

import (
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"
	"unicode"

	"github.com/gpucdi/gpucdi/gpu"
)

// healthyInventory returns an inventory of eight GPUs without faults, as a driver reports it.
func healthyInventory() *gpu.Inventory {
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

func TestSanitizeKeepsValidInventory(t *testing.T) {
	got, want := healthyInventory(), healthyInventory()
	sanitize(got)
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
}

// Invalid data of one GPU or MIG device must not affect the others.
func TestSanitize(t *testing.T) {
	const invalid = 5
	set := func(change func(g *gpu.GPU)) func(*gpu.Inventory) {
		return func(inv *gpu.Inventory) { change(&inv.GPUs[invalid]) }
	}
	uuid := func(uuid string) func(*gpu.Inventory) { return set(func(g *gpu.GPU) { g.UUID = uuid }) }
	minor := func(minor int) func(*gpu.Inventory) { return set(func(g *gpu.GPU) { g.Minor = minor }) }
	migDevice := func(change func(m *gpu.MIGDevice)) func(*gpu.Inventory) {
		return func(inv *gpu.Inventory) { change(&inv.GPUs[invalid].MIGDevices[1]) }
	}
	for _, tc := range []struct {
		name       string
		change     func(*gpu.Inventory)
		unreadable []string // GPUs and MIG devices, as listed by names
		faulty     []int    // GPUs, by index
		migDevices []int    // faulty MIG devices of the invalid GPU, by index
		fault      string   // contained in each message
	}{
		{"empty UUID", uuid(""), []string{"5"}, nil, nil, `UUID "" is not a valid device name`},
		{"UUID without a name", uuid("GPU-"), []string{"5"}, nil, nil, "is not a valid device name"},
		{"UUID with another prefix", uuid("MIG-167534cb"), []string{"5"}, nil, nil, "is not a valid device name"},
		{"reserved name all", uuid("all"), []string{"5"}, nil, nil, `UUID "all" is not`},
		{"UUID with a path", uuid("GPU-../../x"), []string{"5"}, nil, nil, "is not a valid device name"},
		{"UUID of a replica", uuid("GPU-a::1"), []string{"5"}, nil, nil, "is not a valid device name"},
		{"UUID not in ASCII", uuid("GPU-ä"), []string{"5"}, nil, nil, "is not a valid device name"},
		{"UUID ending in a dash", uuid("GPU-a-"), []string{"5"}, nil, nil, "is not a valid device name"},
		{"UUID with control characters", uuid("GPU-\x1b[31m\n"), []string{"5"}, nil, nil, "UUID \"GPU-\ufffd[31m\" is not a valid device name"},
		{"long UUID", uuid("GPU-" + strings.Repeat("a", 1<<20)), []string{"5"}, nil, nil, "is not a valid device name"},
		{"another GPU's UUID", uuid(healthyInventory().GPUs[2].UUID), []string{"2", "5"}, nil, nil, "is not unique, 2 devices have it"},
		{"negative minor number", minor(-2), nil, []int{5}, nil, "minor number -2"},
		{"minor number too large", minor(4294967295), nil, []int{5}, nil, "minor number 4294967295"},
		{"another GPU's minor number", minor(healthyInventory().GPUs[2].Minor), nil, []int{2, 5}, nil, "is not unique, 2 GPUs have it"},
		{"unknown minor number", set(func(g *gpu.GPU) { g.Minor, g.Fault = gpu.MinorUnknown, readFault(errors.New("not read")) }), nil, []int{5}, nil, "not read"},
		{"unknown minor numbers", func(inv *gpu.Inventory) {
			for _, i := range []int{2, 5} {
				inv.GPUs[i].Minor, inv.GPUs[i].Fault = gpu.MinorUnknown, readFault(errors.New("not read"))
			}
		}, nil, []int{2, 5}, nil, "not read"},
		{"existing fault", set(func(g *gpu.GPU) { g.Minor, g.Fault = -2, readFault(errors.New("lost")) }), nil, []int{5}, nil, "lost"},
		{"MIG device with an empty UUID", migDevice(func(m *gpu.MIGDevice) { m.UUID = "" }), []string{"5/1"}, nil, nil, `MIG device 1: UUID ""`},
		{"MIG device with a GPU's UUID", migDevice(func(m *gpu.MIGDevice) { m.UUID = "GPU-a" }), []string{"5/1"}, nil, nil, "MIG device 1"},
		{"MIG device with a path as UUID", migDevice(func(m *gpu.MIGDevice) { m.UUID = "MIG-GPU-a/1/0" }), []string{"5/1"}, nil, nil, "MIG device 1"},
		{"MIG devices of one GPU with the same UUID", migDevice(func(m *gpu.MIGDevice) { m.UUID = healthyInventory().GPUs[invalid].MIGDevices[0].UUID }), []string{"5/0", "5/1"}, nil, nil, "is not unique, 2 devices have it"},
		{"MIG devices of two GPUs with the same UUID", migDevice(func(m *gpu.MIGDevice) { m.UUID = healthyInventory().GPUs[2].MIGDevices[0].UUID }), []string{"2/0", "5/1"}, nil, nil, "is not unique, 2 devices have it"},
		{"MIG devices with the same instances", migDevice(func(m *gpu.MIGDevice) { m.GPUInstance = 7 }), nil, nil, []int{0, 1}, "GPU instance 7 and compute instance 0 are not unique"},
		{"profile with a slash", migDevice(func(m *gpu.MIGDevice) { m.Profile = "1g/5gb" }), nil, nil, []int{1}, `profile "1g/5gb"`},
		{"profile with control characters", migDevice(func(m *gpu.MIGDevice) { m.Profile = "\x1b" }), nil, nil, []int{1}, "profile \"\ufffd\""},
		{"long profile", migDevice(func(m *gpu.MIGDevice) { m.Profile = strings.Repeat("1", 1<<20) }), nil, nil, []int{1}, "is not valid in a resource name"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			inv := healthyInventory()
			tc.change(inv)
			sanitize(inv)
			var faults []gpu.Fault
			var unreadable, faulty, migDevices []int
			for _, u := range inv.Unreadable {
				unreadable, faults = append(unreadable, u.Index), append(faults, u.Fault)
			}
			var wantUnreadable []int
			for _, name := range tc.unreadable {
				wantUnreadable = append(wantUnreadable, int(name[0]-'0'))
			}
			if got, want := names(inv, nil), names(healthyInventory(), tc.unreadable); !slices.Equal(got, want) {
				t.Errorf("GPUs and MIG devices %v, want %v", got, want)
			}
			want := healthyInventory().GPUs
			for _, g := range inv.GPUs {
				if !g.Fault.None() {
					faulty, faults = append(faulty, g.Index), append(faults, g.Fault)
					if g.Minor != gpu.MinorUnknown {
						t.Errorf("GPU %d has a fault and the minor number %d", g.Index, g.Minor)
					}
				} else if g.Index != invalid && !slices.Contains(unreadable, g.Index) && !reflect.DeepEqual(g, want[g.Index]) {
					t.Errorf("GPU %d is %+v, want %+v", g.Index, g, want[g.Index])
				}
				for _, m := range g.MIGDevices {
					if !m.Fault.None() {
						migDevices, faults = append(migDevices, m.Index), append(faults, m.Fault)
					}
				}
			}
			if !slices.Equal(unreadable, wantUnreadable) || !slices.Equal(faulty, tc.faulty) || !slices.Equal(migDevices, tc.migDevices) {
				t.Errorf("unreadable %v, faulty %v, faulty MIG devices %v; want %v, %v, %v", unreadable, faulty, migDevices, wantUnreadable, tc.faulty, tc.migDevices)
			}
			for _, fault := range faults {
				message := fault.Message
				if fault.Code != gpu.FaultUnreadable || fault.Remedy == "" || !strings.Contains(message, tc.fault) || len(message) > faultLimit || strings.ContainsFunc(message, unprintable) {
					t.Errorf("fault %.200q with the code %q, want %q", fault, fault.Code, tc.fault)
				}
			}
		})
	}
}

// names returns the indexes of the GPUs, such as "5", and of their MIG devices, such as "5/1", without those in except.
func names(inv *gpu.Inventory, except []string) (names []string) {
	for _, g := range inv.GPUs {
		name := strconv.Itoa(g.Index)
		if slices.Contains(except, name) {
			continue
		}
		names = append(names, name)
		for _, m := range g.MIGDevices {
			if name := fmt.Sprintf("%d/%d", g.Index, m.Index); !slices.Contains(except, name) {
				names = append(names, name)
			}
		}
	}
	return names
}

func unprintable(r rune) bool { return !unicode.IsPrint(r) }

func TestTextIsBoundedAndPrintable(t *testing.T) {
	bad := "\x1b[31m\n" + strings.Repeat("\x00", 1<<20)
	inv := healthyInventory()
	inv.Driver.Version = bad
	inv.GPUs[5].Product, inv.GPUs[5].PCIClass, inv.GPUs[5].Clique = bad, bad, bad
	inv.GPUs[5].VGPU = &gpu.VGPU{HostDriver: bad, HostBranch: bad}
	sanitize(inv)
	g := inv.GPUs[5]
	for name, text := range map[string]string{
		"driver version": inv.Driver.Version, "product": g.Product, "PCI class": g.PCIClass, "clique": g.Clique,
		"host driver": g.VGPU.HostDriver, "host branch": g.VGPU.HostBranch,
	} {
		if len(text) > textLimit || text == "" || strings.ContainsFunc(text, unprintable) {
			t.Errorf("%s of %d bytes is too long or not printable: %.100q", name, len(text), text)
		}
	}
}
