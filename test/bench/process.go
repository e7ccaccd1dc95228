package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	api "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

// memory is what the agent's processes hold, in the kB (1024 bytes) of
// /proc/PID/smaps_rollup. Pages that they share, as those of the program itself, count once.
type memory struct{ resident, anonymous int }

func (m memory) String() string {
	mega := func(kilo int) float64 { return float64(kilo) * 1024 / 1e6 }
	return fmt.Sprintf("%.1f MB, of which %.1f is no file's", mega(m.resident), mega(m.anonymous))
}

func held(pid int) (memory, error) {
	pids, err := family(pid)
	var sum memory
	for _, pid := range pids {
		fields, errFields := numbers(fmt.Sprintf("/proc/%d/smaps_rollup", pid))
		err = errors.Join(err, errFields)
		sum.resident += fields["Pss"]
		sum.anonymous += fields["Anonymous"]
	}
	return sum, err
}

// family is a process and its children: the agent and the one that holds the driver.
func family(pid int) ([]int, error) {
	tasks, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
	if err != nil {
		return nil, err
	}
	pids := []int{pid}
	for _, task := range tasks {
		data, err := os.ReadFile(task)
		if err != nil {
			return nil, fmt.Errorf("looking for the agent's children: %w", err)
		}
		for child := range strings.FieldsSeq(string(data)) {
			n, err := strconv.Atoi(child)
			if err != nil {
				return nil, fmt.Errorf("parsing %s: %w", task, err)
			}
			pids = append(pids, n)
		}
	}
	if len(pids) < 2 {
		return nil, errors.New("looking for the agent's children: nobody holds the driver")
	}
	return pids, nil
}

// numbers reads the lines "Name: number ..." of a file of /proc.
func numbers(file string) (map[string]int, error) {
	data, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("looking at the agent: %w", err)
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

// usage is what the threads of the agent's processes have used.
type usage struct {
	cpu      time.Duration
	switches int
}

func (u usage) String() string {
	return fmt.Sprintf("%s of CPU, %d context switches", millis(u.cpu), u.switches)
}

func used(pid int) (usage, error) {
	pids, err := family(pid)
	if err != nil {
		return usage{}, err
	}
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
			return usage{}, fmt.Errorf("looking at the agent's threads: %w", err)
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

const (
	// idle is how long the agent is watched while nobody wants anything of it, and then again
	// while Prometheus scrapes it.
	idle = 30 * time.Second
	// scrapeInterval is the time between two scrapes.
	scrapeInterval = 15 * time.Second
	// load is how many calls come in the end.
	load = 3000
)

// live watches what the agent needs to live: its memory, and what it does unasked and when it is
// scraped.
func (b *bench) live(ctx context.Context) (err error) {
	a, err := b.serve(ctx, b.nodes.eight)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, a.stop()) }()
	stop, err := listenPods(ctx, a.dir, a.devices)
	if err != nil {
		return err
	}
	defer stop()
	if err := sleep(ctx, 2*time.Second); err != nil {
		return err
	}
	pid := a.cmd.Process.Pid
	atStart, err := held(pid)
	if err != nil {
		return err
	}
	idling, err := spent(pid, func() error { return sleep(ctx, idle) })
	if err != nil {
		return err
	}
	scraped, err := spent(pid, func() error { return a.scrapedWhileIdle(ctx) })
	if err != nil {
		return err
	}
	afterScrapes, err := held(pid)
	if err != nil {
		return err
	}
	if err := a.burden(ctx); err != nil {
		return err
	}
	underLoad, err := held(pid)
	if err != nil {
		return err
	}
	b.table.add("resident after start", atStart.String(), "22.1 MB", "31.6 MB")
	b.table.add(fmt.Sprintf("resident, scraped every %s", scrapeInterval), afterScrapes.String(), "", "")
	b.table.add(fmt.Sprintf("resident after %d calls", load), underLoad.String(), "26.8 MB", "38.3 MB")
	b.table.add(fmt.Sprintf("idle for %s", idle), idling.String(), "not measurable", "")
	b.table.add(fmt.Sprintf("idle for %s, scraped every %s", idle, scrapeInterval), scraped.String(), "", "")
	return nil
}

// spent is what the agent uses while something is done.
func spent(pid int, do func() error) (usage, error) {
	before, err := used(pid)
	if err != nil {
		return usage{}, err
	}
	if err := do(); err != nil {
		return usage{}, err
	}
	after, err := used(pid)
	return usage{after.cpu - before.cpu, after.switches - before.switches}, err
}

// scrapedWhileIdle scrapes the agent as Prometheus does.
func (a *agent) scrapedWhileIdle(ctx context.Context) error {
	for range idle / scrapeInterval {
		if err := errors.Join(sleep(ctx, scrapeInterval), a.scrape(ctx)); err != nil {
			return err
		}
	}
	return nil
}

// burden makes the calls of a kubelet that places pods.
func (a *agent) burden(ctx context.Context) error {
	plugin := api.NewDevicePluginClient(a.conn)
	for range load / 2 {
		for _, do := range []request{prefer(4, a.devices), allocate(a.devices[4:])} {
			if err := do(ctx, plugin); err != nil {
				return err
			}
		}
	}
	return nil
}

func sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}
