package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// memory is what a plugin's processes hold, in the kB (1024 bytes) of /proc/PID/smaps_rollup.
type memory struct{ resident, anonymous int }

func (m memory) figure() figure {
	mega := func(kilo int) float64 { return float64(kilo) * 1024 / 1e6 }
	text := fmt.Sprintf("%.1f MB, of which %.1f is no file's", mega(m.resident), mega(m.anonymous))
	return figure{text, mega(m.resident)}
}

func held(pids []int) (memory, error) {
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

// family is a process and its children: gpucdi has one that holds the driver.
func family(pid int) ([]int, error) {
	tasks, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
	if err != nil {
		return nil, err
	}
	pids := []int{pid}
	for _, task := range tasks {
		data, err := os.ReadFile(task)
		if err != nil {
			return nil, fmt.Errorf("looking for a plugin's processes: %w", err)
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

// numbers reads the lines "Name: number ..." of a file of /proc.
func numbers(file string) (map[string]int, error) {
	data, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("looking at a plugin: %w", err)
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

// usage is what the threads of a plugin's processes have used.
type usage struct {
	cpu      time.Duration
	switches int
}

// figure is what was used in so much time.
func (u usage) figure(in time.Duration) figure {
	share := 100 * u.cpu.Seconds() / in.Seconds()
	return figure{fmt.Sprintf("%s of CPU, %.2f %%, %d context switches", millis(u.cpu), share, u.switches), float64(u.cpu)}
}

// since is what has been used after a moment before.
func (u usage) since(before usage) usage {
	return usage{u.cpu - before.cpu, u.switches - before.switches}
}

func used(pids []int) (usage, error) {
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
		// In nanoseconds, where utime and stime count in hundredths of a second.
		data, err := os.ReadFile(filepath.Join(task, "schedstat"))
		if err != nil {
			return usage{}, fmt.Errorf("looking at a plugin's threads: %w", err)
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
