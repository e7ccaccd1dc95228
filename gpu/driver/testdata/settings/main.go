// Command settings reads calls of driver.Settings from standard input, one per line, and prints the result of each as a
// line of JSON. It also prints snapshots and failures. The tests in test/product use it, because their module cannot import
// package driver.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/gpucdi/gpucdi/gpu"
	"github.com/gpucdi/gpucdi/gpu/driver"
	"github.com/gpucdi/gpucdi/internal/host"
)

// output is the result of a call, or a report.
type output struct {
	Limit       uint64
	Mode        gpu.ComputeMode
	Error       string
	Unsupported bool

	MemoryLimits map[string]gpu.MemoryLimits // of a snapshot, by UUID
	Failure      string                      // UUID of the GPU that made the worker hang or crash
}

func main() {
	root := flag.String("host-root", "/", "root of the node's file system")
	worker := flag.String("worker", "", "path of gpucdi-nvml")
	flag.Parse()
	var mu sync.Mutex
	lines := json.NewEncoder(os.Stdout)
	print := func(o output) {
		mu.Lock()
		defer mu.Unlock()
		_ = lines.Encode(o)
	}
	var settings driver.Settings
	cfg := driver.Config{Node: host.NewRoot(*root), Worker: *worker, Interval: 100 * time.Millisecond, CallTimeout: 5 * time.Second, LimitMemory: true}
	go driver.Run(context.Background(), cfg, &settings, nil, func(r driver.Report) {
		switch r := r.(type) {
		case driver.Snapshot:
			print(output{MemoryLimits: memoryLimits(r)})
		case driver.Failure:
			print(output{Failure: r.GPU})
		}
	})
	for calls := bufio.NewScanner(os.Stdin); calls.Scan(); {
		print(call(&settings, strings.Fields(calls.Text())))
	}
}

func memoryLimits(s driver.Snapshot) map[string]gpu.MemoryLimits {
	all := map[string]gpu.MemoryLimits{}
	if s.Inventory != nil {
		for _, g := range s.Inventory.GPUs {
			all[g.UUID] = g.MemoryLimits
		}
	}
	return all
}

// call makes the call "limit GPU CGROUP [BYTES]" or "mode GPU [MODE]". It sets the value if one is given, and otherwise
// reads it.
func call(s *driver.Settings, args []string) (o output) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	var err error
	switch {
	case len(args) == 3 && args[0] == "limit":
		o.Limit, _, err = s.MemoryLimit(ctx, args[1], args[2])
	case len(args) == 4 && args[0] == "limit":
		if o.Limit, err = strconv.ParseUint(args[3], 10, 64); err == nil {
			err = s.SetMemoryLimit(ctx, args[1], args[2], o.Limit)
		}
	case len(args) == 2 && args[0] == "mode":
		o.Mode, err = s.ComputeMode(ctx, args[1])
	case len(args) == 3 && args[0] == "mode":
		o.Mode = gpu.ComputeMode(args[2])
		err = s.SetComputeMode(ctx, args[1], o.Mode)
	default:
		err = fmt.Errorf("unknown call %q", args)
	}
	if err != nil {
		o.Error, o.Unsupported = err.Error(), errors.Is(err, errors.ErrUnsupported)
	}
	return o
}
