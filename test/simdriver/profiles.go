package simdriver

import (
	"crypto/sha256"
	"fmt"
)

// Profile describes a node to simulate: a driver and its GPUs.
type Profile struct {
	Name    string
	Version string // of the driver
	CUDA    int    // 13000 for 13.0
	GPUs    []GPU
}

// uuid returns a well-formed UUID that is determined by the seed.
func uuid(prefix, seed string) string {
	b := sha256.Sum256([]byte(seed))
	b[6] = b[6]&0x0F | 0x50
	b[8] = b[8]&0x3F | 0x80
	return fmt.Sprintf("%s-%x-%x-%x-%x-%x", prefix, b[0:4], b[4:6], b[6:8], b[8:10], b[10:16])
}

// node returns a profile with one GPU of a product for each PCI bus. place sets the
// GPU's NUMA node, PCIe path, NVLinks and MIG layout.
func node(name string, buses []int, product GPU, place func(i int, g *GPU)) Profile {
	p := Profile{Name: name, Version: "580.95.05", CUDA: 13000}
	for i, bus := range buses {
		g := product
		g.UUID = uuid("GPU", fmt.Sprintf("%s/%d", name, i))
		g.Minor = i
		g.BusID = fmt.Sprintf("00000000:%02X:00.0", bus)
		if g.Serial != "" {
			g.Serial = fmt.Sprintf("%s%04d", g.Serial, 1000+37*i)
		}
		place(i, &g)
		p.GPUs = append(p.GPUs, g)
	}
	return p
}

// switched adds n NVLinks to a GPU, spread over the NVSwitches at these PCI buses.
func switched(g *GPU, n, version int, switches ...int) {
	for l := range n {
		remote := fmt.Sprintf("00000000:%02X:00.0", switches[l*len(switches)/n])
		g.Links = append(g.Links, Link{Index: l, Version: version, Active: true, Remote: remote, Type: LinkToSwitch})
	}
}

// H100x8 is an HGX H100: 18 NVLinks per GPU to 4 NVSwitches, four GPUs per NUMA
// node, each GPU behind its own host bridge.
func H100x8() Profile {
	buses := []int{0x18, 0x2A, 0x3A, 0x5D, 0x9A, 0xAB, 0xBA, 0xDB}
	return node("H100x8", buses, h100, func(i int, g *GPU) {
		g.NUMANode = i / 4
		g.PCIe = PCIe{Node: i / 4, Bridge: i}
		switched(g, 18, 4, 0x07, 0x08, 0x09, 0x0A)
	})
}

// GPUs16 is 16 H100 on one NVSwitch fabric, each pair behind a PCIe switch.
func GPUs16() Profile {
	buses := []int{0x05, 0x06, 0x0B, 0x0C, 0x2E, 0x2F, 0x35, 0x36, 0x85, 0x86, 0x8B, 0x8C, 0xAE, 0xAF, 0xB5, 0xB6}
	return node("GPUs16", buses, h100, func(i int, g *GPU) {
		g.NUMANode = i / 8
		g.PCIe = PCIe{Node: i / 8, Bridge: i / 4, Root: i / 4, Switch: i / 2}
		switched(g, 18, 4, 0x60, 0x61, 0x62, 0x63, 0x64, 0x65)
	})
}

// A100MIG is eight A100 GPUs with NVSwitch. The first five are in MIG mode: two
// with seven 1g.5gb devices, one mixed, one with two 3g.20gb devices, one not partitioned.
func A100MIG() Profile {
	layouts := [][]string{
		{"1g.5gb", "1g.5gb", "1g.5gb", "1g.5gb", "1g.5gb", "1g.5gb", "1g.5gb"},
		{"1g.5gb", "1g.5gb", "1g.5gb", "1g.5gb", "1g.5gb", "1g.5gb", "1g.5gb"},
		{"3g.20gb", "2g.10gb", "1g.5gb", "1g.5gb"},
		{"3g.20gb", "3g.20gb"},
		{},
	}
	buses := []int{0x07, 0x0F, 0x47, 0x4E, 0x87, 0x90, 0xB7, 0xBD}
	return node("A100MIG", buses, a100, func(i int, g *GPU) {
		g.NUMANode = i / 4
		g.PCIe = PCIe{Node: i / 4, Bridge: i / 2, Root: i / 2, Switch: i / 2}
		switched(g, 12, 3, 0xC4, 0xC5, 0xC6, 0xC7, 0xC8, 0xC9)
		if i < len(layouts) {
			must(partition(g, layouts[i]))
		}
	})
}

// PCIe4 is four L40S without NVLink in two NUMA nodes, each with a PCIe switch.
func PCIe4() Profile {
	return node("PCIe4", []int{0x17, 0x18, 0xB3, 0xB4}, l40s, func(i int, g *GPU) {
		g.NUMANode = i / 2
		g.PCIe = PCIe{Node: i / 2, Bridge: i / 2, Root: i / 2, Switch: i / 2}
	})
}

// GTX1060x2 is a desktop machine with two GTX 1060: Pascal, no MIG, no NVLink, no NUMA.
func GTX1060x2() Profile {
	return node("GTX1060x2", []int{0x01, 0x02}, gtx1060, func(i int, g *GPU) {
		g.PCIe = PCIe{Root: i}
	})
}

// Mixed is two H100 and two GTX 1060.
func Mixed() Profile {
	p := node("Mixed", []int{0x18, 0x2A, 0x81, 0x82}, h100, func(i int, g *GPU) { g.PCIe = PCIe{Root: i} })
	for i, g := range GTX1060x2().GPUs {
		old := p.GPUs[2+i]
		g.UUID, g.Minor, g.BusID = old.UUID, old.Minor, old.BusID
		p.GPUs[2+i] = g
	}
	return p
}

func must(err error) {
	if err != nil {
		panic(err)
	}
}
