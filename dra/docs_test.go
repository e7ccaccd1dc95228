package dra

import (
	"maps"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/gpucdi/gpucdi/allocator"
	"github.com/gpucdi/gpucdi/cluster"
	"github.com/gpucdi/gpucdi/gpu"
)

// table returns the rows of the table below a heading of docs/dra-attributes.md, without their last column. It removes
// the backticks of code spans.
func table(t *testing.T, heading string) (rows []string) {
	t.Helper()
	document, err := os.ReadFile("../docs/dra-attributes.md")
	if err != nil {
		t.Fatal(err)
	}
	_, section, found := strings.Cut(string(document), "\n## "+heading+"\n")
	if !found {
		t.Fatalf("docs/dra-attributes.md has no heading %q", heading)
	}
	section, _, _ = strings.Cut(section, "\n## ")
	for line := range strings.Lines(section) {
		if !strings.HasPrefix(line, "| `") {
			continue
		}
		cells := strings.Split(strings.ReplaceAll(strings.TrimSpace(line), "`", ""), " | ")
		rows = append(rows, strings.TrimPrefix(strings.Join(cells[:len(cells)-1], " | "), "| "))
	}
	slices.Sort(rows)
	return rows
}

// documented returns a GPU in a set of eight, and a MIG device, with the example values of the documentation.
func documented() (whole, mig cluster.Device) {
	inv := pairs(9)
	devices := Devices(inv, offersOf(inv), cluster.NoSchedule)
	return devices[1], devices[len(devices)-1]
}

// value returns the type and the value of an attribute.
func value(a cluster.Attribute) (kind, text string) {
	switch {
	case a.Int != nil:
		return "int", strconv.FormatInt(*a.Int, 10)
	case a.Version != nil:
		return "version", *a.Version
	case a.Bool != nil:
		return "bool", strconv.FormatBool(*a.Bool)
	}
	return "string", *a.String
}

// kinds returns the kinds of devices that have an attribute or a capacity, as in the document.
func kinds(onGPU, onMIG bool) string {
	switch {
	case onGPU && onMIG:
		return "GPU, MIG"
	case onGPU:
		return "GPU"
	}
	return "MIG"
}

// docs/dra-attributes.md lists exactly the attributes of the devices.
func TestDocumentedAttributes(t *testing.T) {
	whole, mig := documented()
	attributes := maps.Clone(mig.Attributes)
	maps.Copy(attributes, whole.Attributes)
	var rows []string
	for name, a := range attributes {
		_, onGPU := whole.Attributes[name]
		_, onMIG := mig.Attributes[name]
		kind, text := value(a)
		rows = append(rows, strings.Join([]string{name, kind, kinds(onGPU, onMIG), text}, " | "))
	}
	compare(t, "Attributes", rows)
}

func TestDocumentedCapacities(t *testing.T) {
	whole, mig := documented()
	capacities := maps.Clone(mig.Capacity)
	maps.Copy(capacities, whole.Capacity)
	var rows []string
	for name, c := range capacities {
		_, onGPU := whole.Capacity[name]
		_, onMIG := mig.Capacity[name]
		name = regexp.MustCompile(`^memorySlice\d$`).ReplaceAllString(name, "memorySlice0 to memorySlice7")
		rows = append(rows, strings.Join([]string{name, kinds(onGPU, onMIG), c.Value}, " | "))
	}
	for _, capacity := range []allocator.Amount{{Cores: allocator.WholeCores, Memory: 40 << 30}, {Replicas: 4}} {
		inv := pairs(9)
		offers := offersOf(inv)[:1]
		offers[0].Capacity = capacity
		for name, c := range Devices(inv, offers, cluster.NoSchedule)[0].Capacity {
			if name != capacityMemory {
				rows = append(rows, strings.Join([]string{name, "shared GPU, MIG", c.Value}, " | "))
			}
		}
	}
	compare(t, "Capacities", rows)
}

func TestDocumentedTaints(t *testing.T) {
	document, err := os.ReadFile("../docs/health.md")
	if err != nil {
		t.Fatal(err)
	}
	rows := []string{"xid_ and the XID | " + taint(gpu.XIDFault(79), cluster.NoSchedule).Key}
	for _, row := range regexp.MustCompile("(?m)^\\| [^|]+ \\| `([a-z_]+)` \\|").FindAllStringSubmatch(string(document), -1) {
		rows = append(rows, row[1]+" | "+taint(gpu.FaultCode(row[1]), cluster.NoSchedule).Key)
	}
	if len(rows) < 10 {
		t.Fatalf("found only %d fault codes in docs/health.md; has its format changed?", len(rows))
	}
	compare(t, "Taints", rows)
}

// compare compares the rows of a table with the wanted rows.
func compare(t *testing.T, heading string, want []string) {
	t.Helper()
	slices.Sort(want)
	want = slices.Compact(want)
	if got := table(t, heading); !slices.Equal(got, want) {
		t.Errorf("%s in docs/dra-attributes.md:\n%s\nwant:\n%s", heading, strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}
