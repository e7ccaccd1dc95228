package nvml

import (
	"math"
	"path"
	"strconv"
	"strings"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/gpucdi/gpucdi/gpu"
	"github.com/gpucdi/gpucdi/gpu/driver"
	"github.com/gpucdi/gpucdi/internal/host"
)

// maxProcesses bounds the number of processes of one GPU. A driver lists at most 950
// (NV2080_CTRL_GPU_GET_PIDS_MAX_COUNT).
const maxProcesses = 1024

// notAvailable is the value of a process's memory if the driver does not report it.
const notAvailable = math.MaxUint64

// sharesPIDs reports whether the PIDs of this process's namespace are those of the node's /proc. Current drivers list
// only processes of the caller's PID namespace, with their PIDs in it; older ones list all, with the host's PIDs. In
// another namespace, the PIDs of current drivers do not match the node's /proc. Older drivers are treated the same.
func sharesPIDs(node host.Root) bool {
	status, err := node.ReadFile("/proc/self/status") // "self" is relative to the namespace of that /proc
	if err != nil {
		return false
	}
	for line := range strings.Lines(string(status)) {
		if pids, found := strings.CutPrefix(line, "NSpid:"); found {
			return len(strings.Fields(pids)) == 1 // one PID for each namespace, from that of /proc to that of the process
		}
	}
	return false
}

// processes are the processes of one GPU.
type processes struct {
	known bool                  // false: not listed by the driver, too many, or with other PIDs than in the node's /proc
	sized bool                  // false: the driver does not report the memory of each process
	used  map[processKey]uint64 // memory in bytes
	util  map[int]float64       // by PID; MIG devices have none
}

type processKey struct {
	device string // UUID
	pid    int
}

func (s session) newProcesses() *processes {
	return &processes{known: s.samePIDs, sized: true, used: map[processKey]uint64{}}
}

// read reads the memory that each process uses of a GPU or MIG device. A process with both compute and graphics
// contexts is in both lists, with the same total.
func (p *processes) read(uuid string, dev nvml.Device) {
	if !p.known {
		return
	}
	listed := false
	for _, list := range []func() ([]nvml.ProcessInfo, nvml.Return){dev.GetComputeRunningProcesses, dev.GetGraphicsRunningProcesses} {
		infos, ret := list()
		listed = listed || ret == nvml.SUCCESS
		for _, info := range infos {
			key := processKey{uuid, int(info.Pid)}
			if _, found := p.used[key]; !found && len(p.used) >= maxProcesses {
				p.known = false // partial sums would be wrong
				return
			}
			p.used[key] = max(p.used[key], info.UsedGpuMemory)
			p.sized = p.sized && info.UsedGpuMemory != notAvailable
		}
	}
	p.known = listed
}

// readUtilization reads the utilization of the GPU's SMs by each process from its latest sample after *seen, and
// updates *seen. A process without such a sample was idle.
func (p *processes) readUtilization(dev nvml.Device, seen *uint64) {
	if !p.known {
		return
	}
	samples, ret := dev.GetProcessUtilization(*seen)
	if ret != nvml.SUCCESS && ret != nvml.ERROR_NOT_FOUND {
		return
	}
	p.util = map[int]float64{}
	latest := map[uint32]uint64{}
	for _, sample := range samples {
		if sample.TimeStamp >= latest[sample.Pid] {
			latest[sample.Pid] = sample.TimeStamp
			p.util[int(sample.Pid)] = min(float64(sample.SmUtil)/percent, 1)
		}
		*seen = max(*seen, sample.TimeStamp)
	}
}

// byCgroup sums the memory and utilization of the processes by device and cgroup. Processes that have ended are
// skipped. It returns nil if the processes are unknown or there are more than driver.MaxCgroups sums.
func (p *processes) byCgroup(node host.Root) *gpu.Usage {
	if !p.known {
		return nil
	}
	type key struct{ device, cgroup string }
	sums := map[key]*gpu.CgroupUsage{}
	cgroups := map[int]string{}
	for k, used := range p.used {
		cgroup, read := cgroups[k.pid]
		if !read {
			cgroup = cgroupOf(node, k.pid)
			cgroups[k.pid] = cgroup
		}
		if cgroup == "" {
			continue
		}
		sum := sums[key{k.device, cgroup}]
		if sum == nil {
			if len(sums) == driver.MaxCgroups {
				return nil
			}
			sum = &gpu.CgroupUsage{Device: k.device, Cgroup: cgroup}
			sums[key{k.device, cgroup}] = sum
		}
		p.add(sum, k.pid, used)
	}
	all := &gpu.Usage{Utilization: p.util != nil}
	for _, sum := range sums {
		all.Cgroups = append(all.Cgroups, *sum)
	}
	return all
}

func (p *processes) add(sum *gpu.CgroupUsage, pid int, used uint64) {
	if p.sized {
		if sum.MemoryUsed == nil {
			sum.MemoryUsed = new(uint64)
		}
		*sum.MemoryUsed += used
	}
	sum.Utilization = min(sum.Utilization+p.util[pid], 1)
}

// cgroupOf returns the path of a process's cgroup; empty if the process has ended. With cgroup v1 it is the longest
// path of all controllers, since a runtime may use only some of them. A long path is truncated, and characters that
// take more than one byte in JSON are replaced: a container chooses the names of the cgroups that it creates.
func cgroupOf(node host.Root, pid int) (cgroup string) {
	data, err := node.ReadFile(path.Join("/proc", strconv.Itoa(pid), "cgroup"))
	if err != nil {
		return ""
	}
	for line := range strings.Lines(string(data)) {
		// "0::/path", or "4:memory:/path" with cgroup v1.
		fields := strings.SplitN(strings.TrimSuffix(line, "\n"), ":", 3)
		if len(fields) == 3 && len(fields[2]) > len(cgroup) {
			cgroup = fields[2]
		}
	}
	return strings.Map(plain, cgroup[:min(len(cgroup), driver.CgroupPathLimit)])
}

// plain returns r if JSON encodes it as one byte, else a question mark.
func plain(r rune) rune {
	if r < ' ' || r > '~' || strings.ContainsRune(`"\<>&`, r) {
		return '?'
	}
	return r
}
