package main

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
)

// memory is the memory usage of a plugin's processes in KiB, from /proc/PID/smaps_rollup.
type memory struct{ resident, anonymous int }

func megabytes(kib int) float64 { return float64(kib) * 1024 / 1e6 }

func (m memory) figure() figure {
	text := fmt.Sprintf("%.1f MB, %.1f MB anonymous", megabytes(m.resident), megabytes(m.anonymous))
	return figure{text, megabytes(m.resident)}
}

// beyond returns by how much the resident memory exceeds that of another program.
func (m memory) beyond(other memory) figure {
	more := megabytes(m.resident - other.resident)
	return figure{fmt.Sprintf("%+.1f MB", more), more}.with(", %s in total", m.figure().text)
}

// medianMemory returns the median by resident memory.
func medianMemory(all []memory) memory {
	sorted := slices.SortedFunc(slices.Values(all), func(a, b memory) int { return cmp.Compare(a.resident, b.resident) })
	return sorted[len(sorted)/2]
}

func memoryOf(pids []int) (memory, error) {
	var sum memory
	var err error
	for _, pid := range pids {
		fields, errFields := numbers(fmt.Sprintf("/proc/%d/smaps_rollup", pid))
		err = errors.Join(err, errFields)
		sum.resident += fields["Rss"]
		sum.anonymous += fields["Anonymous"]
	}
	return sum, err
}

// processesOf returns the PIDs of a process and its children, such as the driver worker of gpucdi.
func processesOf(pid int) ([]int, error) {
	tasks, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
	if err != nil {
		return nil, err
	}
	pids := []int{pid}
	for _, task := range tasks {
		data, err := os.ReadFile(task)
		if err != nil {
			return nil, fmt.Errorf("listing the processes of a plugin: %w", err)
		}
		for child := range strings.FieldsSeq(string(data)) {
			n, err := strconv.Atoi(child)
			if err != nil {
				return nil, fmt.Errorf("parsing %s: %w", task, err)
			}
			pids = append(pids, n)
		}
	}
	return pids, nil
}

// numbers parses lines of the form "Name: number ..." of a file in /proc.
func numbers(file string) (map[string]int, error) {
	data, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("reading the memory or status of a plugin: %w", err)
	}
	found := map[string]int{}
	for line := range strings.Lines(string(data)) {
		name, rest, _ := strings.Cut(line, ":")
		if words := strings.Fields(rest); len(words) > 0 {
			if n, err := strconv.Atoi(words[0]); err == nil {
				found[name] = n
			}
		}
	}
	return found, nil
}

// usage is the CPU usage of all threads of a plugin's processes since their start.
type usage struct {
	cpu      time.Duration
	switches int
}

// figure formats the usage in a period of length d.
func (u usage) figure(d time.Duration) figure {
	share := 100 * u.cpu.Seconds() / d.Seconds()
	return figure{fmt.Sprintf("%s of CPU, %.2f %%, %d context switches", millis(u.cpu), share, u.switches), float64(u.cpu)}
}

// since returns the usage since an earlier measurement.
func (u usage) since(before usage) usage {
	return usage{u.cpu - before.cpu, u.switches - before.switches}
}

func usageOf(pids []int) (usage, error) {
	var tasks []string
	for _, pid := range pids {
		found, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*", pid))
		if err != nil {
			return usage{}, err
		}
		tasks = append(tasks, found...)
	}
	var sum usage
	for _, task := range tasks {
		// schedstat is in nanoseconds; utime and stime in stat have a resolution of 10 ms.
		data, err := os.ReadFile(filepath.Join(task, "schedstat"))
		if err != nil {
			return usage{}, fmt.Errorf("reading the CPU time of a plugin: %w", err)
		}
		var nanoseconds int64
		if _, err := fmt.Sscan(string(data), &nanoseconds); err != nil {
			return usage{}, fmt.Errorf("parsing %s/schedstat: %w", task, err)
		}
		status, err := numbers(filepath.Join(task, "status"))
		if err != nil {
			return usage{}, err
		}
		sum.cpu += time.Duration(nanoseconds)
		sum.switches += status["voluntary_ctxt_switches"] + status["nonvoluntary_ctxt_switches"]
	}
	return sum, nil
}
