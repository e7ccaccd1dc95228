package main

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/gpucdi/gpucdi/doctor"
	"github.com/gpucdi/gpucdi/gpu"
	"github.com/gpucdi/gpucdi/status"
)

var testNode = status.Node{
	Name: "node", Version: "v1",
	Runtime: status.Runtime{Error: "CDI is off"},
	Kubelet: status.Kubelet{Resources: []status.Resource{{Name: "nvidia.com/gpu", Error: "waiting"}}},
	GPUs: []status.GPU{
		{GPU: gpu.GPU{UUID: "GPU-a", Index: 0, Product: "NVIDIA H100 80GB HBM3", MemoryBytes: 80 << 30}},
		{GPU: gpu.GPU{UUID: "GPU-b", Index: 11, NUMANode: gpu.NUMAUnknown}},
		{GPU: gpu.GPU{UUID: "GPU-c", Index: 12, Product: "NVIDIA A100", MemoryBytes: 40 << 30,
			MIGDevices: []gpu.MIGDevice{{UUID: "MIG-d", Profile: "1g.5gb", MemoryBytes: 5 << 30}}}},
	},
	Devices: []status.Device{
		{ID: "GPU-a", GPU: "GPU-a", Index: "0", Resource: "nvidia.com/gpu", AllocatedTo: []status.Holder{{Namespace: "default", Pod: "pod", Container: "main"}}},
		{ID: "GPU-b", GPU: "GPU-b", Index: "11", Resource: "nvidia.com/gpu", Fault: gpu.Fault{Code: "xid_79", Message: "XID 79: off the bus", Remedy: "reboot the node", Since: time.Now()}},
		{ID: "MIG-d", GPU: "GPU-c", Index: "12:0", Resource: "nvidia.com/mig-1g.5gb", Replicas: []string{"MIG-d::0", "MIG-d::1"},
			AllocatedTo: []status.Holder{{Namespace: "default", Pod: "a", Container: "b"}, {Namespace: "default", Pod: "c", Container: "d"}}},
		{ID: "MIG-e", GPU: "GPU-c", Index: "12:1", Resource: "nvidia.com/mig-1g.5gb", State: "draining", Since: time.Now(), Reason: "the config no longer advertises it in this way", Awaits: "its pods to end"},
		{ID: "MIG-f", GPU: "GPU-c", Index: "12:2", Resource: "nvidia.com/mig-1g.5gb", State: "waiting", Since: time.Now(), Reason: "waits until no pod holds MIG-e"},
	},
	Unreadable: []gpu.Unreadable{{Index: 5, Fault: gpu.Fault{Code: gpu.FaultUnreadable, Message: "no answer"}}},
}

var escape = regexp.MustCompile("\x1b\\[[0-9]+m")

// Every column is aligned in every row, with colors and without.
func TestStatusTablesAreAligned(t *testing.T) {
	for name, paint := range map[string]painter{"plain": plain, "colored": colored} {
		for _, wide := range []bool{false, true} {
			var out strings.Builder
			if err := writeStatusTables(&out, testNode, wide, paint); err != nil {
				t.Fatal(err)
			}
			text := escape.ReplaceAllString(out.String(), "")
			if (text != out.String()) != (name == "colored") {
				t.Errorf("%s: escapes are %t", name, text != out.String())
			}
			checkColumns(t, text, wide)
			for _, part := range []string{"CDI is off", "nvidia.com/gpu: waiting", "XID 79: off the bus", "GPU 5", "no answer",
				"the config no longer advertises it in this way; waits for its pods to end", "waits until no pod holds MIG-e"} {
				if !strings.Contains(text, part) {
					t.Errorf("%q is not in\n%s", part, text)
				}
			}
			if strings.Count(text, "reboot the node") != 1 || strings.Contains(text, "off the bus; reboot the node") == wide {
				t.Errorf("wide %t: the remedy is in the wrong column:\n%s", wide, text)
			}
		}
	}
}

// checkColumns checks that the cells of the table of devices begin below their headers.
func checkColumns(t *testing.T, text string, wide bool) {
	t.Helper()
	heads := []string{"PRODUCT", "MEMORY", "RESOURCE", "HEALTH", "POD"}
	pod := "default/a/b +1"
	if wide {
		pod = "default/a/b, default/c/d"
	}
	_, table, _ := strings.Cut(text, "\n\nGPU ")
	rows := strings.Split("GPU "+table, "\n")
	for row, cells := range map[int][]string{
		1: {"NVIDIA H100", "80.0 GiB", "nvidia.com/gpu", "healthy", "default/pod/main"},
		2: {"-", "0.0 GiB", "nvidia.com/gpu", "unhealthy", "-"},
		3: {"NVIDIA A100 MIG 1g.5gb", "5.0 GiB", "nvidia.com/mig-1g.5gb ×2", "healthy", pod},
		4: {"NVIDIA A100", "40.0 GiB", "nvidia.com/mig-1g.5gb", "draining", "-"},
		5: {"NVIDIA A100", "40.0 GiB", "nvidia.com/mig-1g.5gb", "waiting", "-"},
	} {
		for i, head := range heads {
			at := strings.Index(rows[0], head)
			if onlyWide := head == "PRODUCT" || head == "MEMORY"; onlyWide && !wide {
				if at >= 0 {
					t.Errorf("column %s is in the default table", head)
				}
				continue
			}
			if at < 0 {
				t.Fatalf("no column %s in\n%s", head, text)
			}
			if cell := string([]rune(rows[row])[utf8.RuneCountInString(rows[0][:at]):]); !strings.HasPrefix(cell, cells[i]) {
				t.Errorf("%q is not below %s in\n%s", cells[i], head, text)
			}
		}
	}
}

// uuid returns a UUID of full length.
func uuid(kind string, i int) string {
	return fmt.Sprintf("%s-%08x-1b7b-9d2c-ccb3-70cbd9f2a1b5", kind, i)
}

// checkWidth checks that each line of a default table fits in 120 columns.
func checkWidth(t *testing.T, text string) {
	t.Helper()
	for line := range strings.Lines(text) {
		if width := utf8.RuneCountInString(strings.TrimSuffix(line, "\n")); width > 120 {
			t.Errorf("%d columns: %s", width, line)
		}
	}
}

// The shares of a GPU and the free remainder are in a separate table.
func TestStatusOfShares(t *testing.T) {
	node := status.Node{Devices: []status.Device{
		{ID: "GPU-a", Index: "0", Resource: "gpu.nvidia.com", MemoryIsolation: "driver", ComputeIsolation: "timeslice", Sharing: &status.Sharing{
			Capacity: status.Amount{Cores: 100, MemoryBytes: 80 << 30}, Free: status.Amount{Cores: 70, MemoryBytes: 60 << 30}, Shares: []status.Share{
				{Namespace: "default", Claim: "quarter", Amount: status.Amount{Cores: 25, MemoryBytes: 20 << 30}, MemoryLimited: true, ComputeCeiling: 50, MemoryUsed: new(uint64(1 << 30))},
				{Namespace: "default", Claim: "small", Amount: status.Amount{Cores: 5, MemoryBytes: 256 << 20}},
			}}},
		{ID: "GPU-b", Index: "1", Resource: "gpu.nvidia.com", MemoryIsolation: "driver", ComputeIsolation: "timeslice", Sharing: &status.Sharing{
			Capacity: status.Amount{Cores: 100, MemoryBytes: 79 << 30}, Free: status.Amount{Cores: 100, MemoryBytes: 79 << 30}}},
		{ID: "GPU-c", Index: "2", Resource: "gpu.nvidia.com", MemoryIsolation: "hardware", ComputeIsolation: "hardware"},
		{ID: "GPU-d", Index: "3", Resource: "nvidia.com/gpu", MemoryIsolation: "driver", ComputeIsolation: "ceiling", Sharing: &status.Sharing{
			Shares: []status.Share{
				{Namespace: "default", Pods: []string{"replicas"}, Amount: status.Amount{Replicas: 2, MemoryBytes: 40 << 30}, MemoryLimited: true, ComputeCeiling: 50, MemoryUsed: new(uint64(2 << 30))},
			}}},
	}}
	var out strings.Builder
	if err := writeStatusTables(&out, node, false, plain); err != nil {
		t.Fatal(err)
	}
	checkWidth(t, out.String())
	for _, row := range []string{
		"GPU CORES CEILING MEMORY USED LIMITED ALLOCATED TO", "0 25 50 20480 MiB 1024 MiB yes claim default/quarter", "0 5 - 256 MiB - no claim default/small", "0 70 - 61440 MiB - - (free)",
		"1 100 - 80896 MiB - - (free)",
		"3 ×2 50 40960 MiB 2048 MiB yes pod default/replicas",
		"Isolation of shared GPU 0, 1: memory driver, compute timeslice",
	} {
		if !slices.ContainsFunc(strings.Split(out.String(), "\n"), func(line string) bool { return strings.Join(strings.Fields(line), " ") == row }) {
			t.Errorf("%q is not in\n%s", row, out.String())
		}
	}
}

// A line below the tables has the reasons why the memory of pods cannot be limited, with the GPUs that each applies to if
// there are several. Without a reason there is no line.
func TestStatusOfMemoryLimits(t *testing.T) {
	const line = "GPU memory of pods cannot be limited: "
	for _, tc := range []struct {
		limits []gpu.MemoryLimits // of the GPUs
		want   string
	}{
		{[]gpu.MemoryLimits{gpu.MemoryLimitsOldDriver, gpu.MemoryLimitsOldDriver}, "the driver is older than 615; install a newer one"},
		{[]gpu.MemoryLimits{gpu.MemoryLimitsCgroupV1}, "the node uses cgroup v1; boot it with cgroup v2"},
		{[]gpu.MemoryLimits{gpu.MemoryLimitsNoPods}, "pods have no cgroups; start the kubelet with cgroupsPerQOS: true and a cgroupRoot of at most one level in its config"},
		{[]gpu.MemoryLimits{gpu.MemoryLimitsMIG, gpu.MemoryLimitsSupported}, "GPU 0: the GPU is in MIG mode; MIG devices have memory of their own"},
		{[]gpu.MemoryLimits{gpu.MemoryLimitsMIG, gpu.MemoryLimitsUnsupported}, "GPU 0: the GPU is in MIG mode; MIG devices have memory of their own; GPU 1: the GPU does not support memory limits"},
		{[]gpu.MemoryLimits{gpu.MemoryLimitsSupported, ""}, ""},
	} {
		var node status.Node
		for i, l := range tc.limits {
			node.GPUs = append(node.GPUs, status.GPU{GPU: gpu.GPU{UUID: uuid("GPU", i), Index: i, MemoryLimits: l}})
		}
		var out strings.Builder
		if err := writeStatusTables(&out, node, false, plain); err != nil {
			t.Fatal(err)
		}
		_, got, found := strings.Cut(out.String(), "\n"+line)
		if got = strings.TrimSuffix(got, "\n"); found != (tc.want != "") || got != tc.want {
			t.Errorf("limits %q: %q, want %q", tc.limits, got, tc.want)
		}
	}
}

// The default table has the first container of a device and the number of others. A wide table has all containers.
func TestStatusTableWidth(t *testing.T) {
	long := status.Holder{Namespace: "machine-learning", Pod: "training-job-7d9f8b6c5d-x2x4q", Container: "main"}
	node := status.Node{Devices: []status.Device{
		{ID: uuid("GPU", 0), Index: "15", Resource: "nvidia.com/gpu", Replicas: []string{"a", "b"},
			AllocatedTo: []status.Holder{{Namespace: "default", Pod: "a", Container: "b"}, long, long, long}},
		{ID: uuid("MIG", 0), Index: "15:6", Resource: "nvidia.com/mig-1g.10gb", AllocatedTo: []status.Holder{long, long},
			Fault: gpu.Fault{Code: "gone", Message: "gone"}},
	}}
	var table, wide strings.Builder
	if err := errors.Join(writeStatusTables(&table, node, false, plain), writeStatusTables(&wide, node, true, plain)); err != nil {
		t.Fatal(err)
	}
	checkWidth(t, table.String())
	for _, part := range []string{"default/a/b +3 ", "machine-learning/trainin… +1 "} {
		if !strings.Contains(table.String(), part) {
			t.Errorf("%q is not in\n%s", part, table.String())
		}
	}
	if names := strings.Count(wide.String(), long.Namespace+"/"+long.Pod+"/"+long.Container); names != 5 {
		t.Errorf("%d names in the wide table, want 5:\n%s", names, wide.String())
	}
}

// hostile is text with control characters, as hardware, a container runtime or another server at the
// agent's address may send it.
const hostile = "\x1b[2J\x1b]0;title\x07forged\n0  GPU-forged\t\u202ehealthy\u009b31m\xff"

// checkGraphic checks that all lines consist of graphic characters.
func checkGraphic(t *testing.T, text string) {
	t.Helper()
	for line := range strings.Lines(text) {
		if strings.ContainsFunc(strings.TrimSuffix(line, "\n"), func(r rune) bool { return !unicode.IsGraphic(r) || r == unicode.ReplacementChar }) {
			t.Errorf("control character in %q", line)
		}
	}
}

// For any text in a status, the tables have one line for each component and device.
func TestStatusTablesOfHostileAgent(t *testing.T) {
	since := time.Now()
	h := status.Node{
		Name: hostile, Version: hostile,
		Config:  status.Config{Path: hostile, Error: hostile},
		Driver:  status.Driver{Driver: gpu.Driver{Version: hostile}, Root: hostile},
		Spec:    status.Spec{Path: hostile},
		Runtime: status.Runtime{Name: hostile, Version: hostile, SpecDirs: []string{hostile}},
		Kubelet: status.Kubelet{Resources: []status.Resource{{Name: hostile, Error: hostile}}, PodsError: hostile},
		GPUs:    []status.GPU{{GPU: gpu.GPU{UUID: "GPU-a", Product: hostile, PCIBusID: hostile}}},
		Devices: []status.Device{
			{ID: hostile, GPU: "GPU-a", Index: hostile, Resource: hostile, Fault: gpu.Fault{Code: hostile, Message: hostile, Remedy: hostile, Since: since}},
			{ID: hostile, GPU: "GPU-a", State: hostile, Reason: hostile, Awaits: hostile, Since: since},
			{ID: "GPU-b", AllocatedTo: []status.Holder{{Namespace: hostile, Pod: hostile, Container: hostile}}},
		},
		Unreadable: []gpu.Unreadable{{Index: 5, Fault: gpu.Fault{Code: hostile, Message: hostile, Remedy: hostile}}},
	}
	for _, wide := range []bool{false, true} {
		var out strings.Builder
		if err := writeStatusTables(&out, h, wide, plain); err != nil {
			t.Fatal(err)
		}
		checkGraphic(t, out.String())
		const lines = 1 + 1 + 6 + 1 + 4 + 2 // node; then components and devices, each after an empty line; warnings
		if got := strings.Count(out.String(), "\n"); got != lines {
			t.Errorf("%d lines, want %d:\n%s", got, lines, out.String())
		}
	}
}

// Further lines of a finding are indented, so that none of them looks like another finding.
func TestFindingOfHostileNode(t *testing.T) {
	var out strings.Builder
	writeFinding(&out, plain, doctor.Finding{Check: "runtime", Verdict: doctor.Fail, Message: hostile, Remedy: hostile})
	checkGraphic(t, out.String())
	lines := strings.Split(strings.TrimSuffix(out.String(), "\n"), "\n")
	if len(lines) != 4 || !strings.HasPrefix(lines[0], "fail  runtime        ") {
		t.Errorf("the finding is written as\n%s", out.String())
	}
	for _, line := range lines[1:] {
		if !strings.HasPrefix(line, strings.Repeat(" ", 21)) {
			t.Errorf("%q looks like a finding", line)
		}
	}
}

// Problems of a component are in its row. Fields that the API server does not store are only a warning, as for doctor
// and metrics.
func TestComponentStates(t *testing.T) {
	const foreign, dropped = "another program wrote ResourceSlices of this driver: a; run only one driver of this name on a node", "the API server does not store taints, capacity; enable the feature gates"
	gates := []string{"taints", "capacity"}
	for _, tc := range []struct {
		node status.Node
		want string
	}{
		{status.Node{}, "config ok no file, all defaults"},
		{status.Node{NRI: &status.NRI{Error: "connecting to NRI: no such file or directory"}}, "nri error connecting to NRI: no such file or directory"},
		{status.Node{DRA: &status.DRA{}}, "slices ok 0 devices"},
		{status.Node{DRA: &status.DRA{Slices: status.Slices{Dropped: gates}}}, "slices warning " + dropped},
		{status.Node{DRA: &status.DRA{Slices: status.Slices{Error: "not written", Foreign: []string{"a"}, Dropped: gates}}}, "slices error not written; " + foreign + "; " + dropped},
	} {
		var out strings.Builder
		if err := writeStatusTables(&out, tc.node, false, plain); err != nil {
			t.Fatal(err)
		}
		if !slices.ContainsFunc(strings.Split(out.String(), "\n"), func(line string) bool { return strings.Join(strings.Fields(line), " ") == tc.want }) {
			t.Errorf("%q is not in\n%s", tc.want, out.String())
		}
	}
}
