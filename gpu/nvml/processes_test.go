package nvml

import (
	"cmp"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/gpucdi/gpucdi/gpu"
	"github.com/gpucdi/gpucdi/gpu/driver"
	"github.com/gpucdi/gpucdi/internal/host"
)

// nodeWith returns a node with these files, by path.
func nodeWith(t *testing.T, files map[string]string) host.Root {
	t.Helper()
	dir := t.TempDir()
	for name, text := range files {
		file := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return host.NewRoot(dir)
}

// test/e2e covers this with real namespaces.
func TestSharesPIDs(t *testing.T) {
	for name, tc := range map[string]struct {
		node host.Root
		want bool
	}{
		"same namespace":       {nodeWith(t, map[string]string{"proc/self/status": "Name:\tgpucdi-nvml\nNStgid:\t77\nNSpid:\t77\nThreads:\t9\n"}), true},
		"nested namespace":     {nodeWith(t, map[string]string{"proc/self/status": "Name:\tgpucdi-nvml\nNSpid:\t4211\t7\n"}), false},
		"sibling namespace":    {nodeWith(t, map[string]string{"proc/1/status": "NSpid:\t1\n"}), false},
		"kernel before 4.1":    {nodeWith(t, map[string]string{"proc/self/status": "Name:\tgpucdi-nvml\n"}), false},
		"this process's /proc": {host.NewRoot("/"), true},
	} {
		if got := sharesPIDs(tc.node); got != tc.want {
			t.Errorf("%s: got %t", name, got)
		}
	}
}

// lister is a GPU or MIG device with processes.
type lister struct {
	nvml.Device
	compute, graphics []nvml.ProcessInfo
	samples           []nvml.ProcessUtilizationSample
	ret, utilRet      nvml.Return
}

func (l lister) GetComputeRunningProcesses() ([]nvml.ProcessInfo, nvml.Return) {
	return l.compute, l.ret
}
func (l lister) GetGraphicsRunningProcesses() ([]nvml.ProcessInfo, nvml.Return) {
	return l.graphics, l.ret
}
func (l lister) GetProcessUtilization(uint64) ([]nvml.ProcessUtilizationSample, nvml.Return) {
	return l.samples, l.utilRet
}

func TestProcesses(t *testing.T) {
	const a, b = "/kubepods/pod1/a", "/kubepods/pod2/b"
	node := nodeWith(t, map[string]string{
		"proc/10/cgroup": "0::" + a + "\n",
		"proc/11/cgroup": "0::" + a + "\n",
		"proc/20/cgroup": "12:devices:" + b + "\n1:name=systemd:/\n0::/\n",
		"proc/30/cgroup": "0::" + a + "/\x1b\"\xff\u2028" + strings.Repeat("x", 3*driver.CgroupPathLimit) + "\n",
		"proc/40/cgroup": "not a cgroup",
	})
	process := func(pid uint32, memory uint64) nvml.ProcessInfo {
		return nvml.ProcessInfo{Pid: pid, UsedGpuMemory: memory}
	}
	sample := func(pid uint32, at uint64, percent uint32) nvml.ProcessUtilizationSample {
		return nvml.ProcessUtilizationSample{Pid: pid, TimeStamp: at, SmUtil: percent}
	}
	// The path is truncated before the three bytes of U+2028 are replaced with one.
	long := (a + "/????" + strings.Repeat("x", driver.CgroupPathLimit))[:driver.CgroupPathLimit-2]
	use := func(cgroup string, memory uint64, utilization float64) gpu.CgroupUsage {
		return gpu.CgroupUsage{Device: "GPU-a", Cgroup: cgroup, MemoryUsed: &memory, Utilization: utilization}
	}
	var many, several []nvml.ProcessInfo
	for pid := range uint32(maxProcesses + 1) {
		many = append(many, process(pid, 1))
	}
	several = append(several, process(10, 5), process(11, 2), process(20, 7), process(30, 1), process(40, 1), process(50, 1), process(0, 1), process(math.MaxUint32, 1))
	for name, tc := range map[string]struct {
		device lister
		want   *gpu.Usage
	}{
		"none":             {lister{utilRet: nvml.ERROR_NOT_FOUND}, &gpu.Usage{Utilization: true}},
		"two containers":   {lister{compute: several, samples: []nvml.ProcessUtilizationSample{sample(10, 3, 25), sample(10, 2, 99), sample(11, 3, 50)}}, &gpu.Usage{Utilization: true, Cgroups: []gpu.CgroupUsage{use(a, 7, 0.75), use(long, 1, 0), use(b, 7, 0)}}},
		"both lists":       {lister{compute: []nvml.ProcessInfo{process(10, 5)}, graphics: []nvml.ProcessInfo{process(10, 5), process(20, 3)}}, &gpu.Usage{Utilization: true, Cgroups: []gpu.CgroupUsage{use(a, 5, 0), use(b, 3, 0)}}},
		"no utilization":   {lister{compute: []nvml.ProcessInfo{process(10, 5)}, utilRet: nvml.ERROR_NOT_SUPPORTED}, &gpu.Usage{Cgroups: []gpu.CgroupUsage{use(a, 5, 0)}}},
		"over 100 percent": {lister{compute: []nvml.ProcessInfo{process(10, 5)}, samples: []nvml.ProcessUtilizationSample{sample(10, 1, math.MaxUint32)}}, &gpu.Usage{Utilization: true, Cgroups: []gpu.CgroupUsage{use(a, 5, 1)}}},
		"memory unknown":   {lister{compute: []nvml.ProcessInfo{process(10, notAvailable)}}, &gpu.Usage{Utilization: true, Cgroups: []gpu.CgroupUsage{{Device: "GPU-a", Cgroup: a}}}},
		"not supported":    {lister{ret: nvml.ERROR_NOT_SUPPORTED}, nil},
		"too many to list": {lister{compute: many}, nil},
	} {
		p := session{samePIDs: true}.newProcesses()
		p.read("GPU-a", tc.device)
		var seen uint64
		p.readUtilization(tc.device, &seen)
		got := p.byCgroup(node)
		if got != nil {
			slices.SortFunc(got.Cgroups, func(a, b gpu.CgroupUsage) int { return cmp.Compare(a.Cgroup, b.Cgroup) })
		}
		if !reflect.DeepEqual(got, tc.want) {
			t.Errorf("%s: got %+v, want %+v", name, got, tc.want)
		}
	}
	other := session{samePIDs: false}.newProcesses()
	other.read("GPU-a", lister{compute: several})
	if got := other.byCgroup(node); got != nil {
		t.Errorf("PIDs of another namespace are resolved: %+v", got)
	}
}

func TestTooManyCgroups(t *testing.T) {
	files := map[string]string{}
	var infos []nvml.ProcessInfo
	for pid := 1; pid <= driver.MaxCgroups+1; pid++ {
		files[fmt.Sprintf("proc/%d/cgroup", pid)] = fmt.Sprintf("0::/container%d\n", pid)
		infos = append(infos, nvml.ProcessInfo{Pid: uint32(pid), UsedGpuMemory: 1})
	}
	p := session{samePIDs: true}.newProcesses()
	p.read("GPU-a", lister{compute: infos})
	if got := p.byCgroup(nodeWith(t, files)); got != nil {
		t.Errorf("got %d cgroups, want none", len(got.Cgroups))
	}
}
