// Command bench compares the speed and memory of gpucdi and of NVIDIA's programs, which it builds from their modules,
// and of gpucdi with and without DRA, and prints tables:
//
//	go run ./bench [-run REGEXP]
//
// It requires root, for device nodes and containers, and Debian, as package container does. Since machines differ and
// are noisy, values are compared within one run, on the same simulated GPUs: gpucdi with NVIDIA's programs, or DRA
// with the device plugin, which take turns; a call with an empty call; a container with a container without a GPU.
//
// The exit status is 0 if all targets are met, 3 if one is missed, and 1 if a measurement failed.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"regexp"
	"strings"
	"syscall"

	"golang.org/x/term"

	"github.com/gpucdi/gpucdi/test/node/tools"
	"github.com/gpucdi/gpucdi/test/progress"
)

// exitMissed is the exit status if a target is missed.
const exitMissed = 3

// errMissed means that a target is missed.
var errMissed = errors.New("targets missed")

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	only := flag.String("run", "", "regular expression of the stages to run; empty: all")
	flag.Parse()
	selected, err := regexp.Compile(*only)
	if err == nil {
		err = run(ctx, selected)
	}
	switch {
	case errors.Is(err, errMissed):
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(exitMissed)
	case err != nil:
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, selected *regexp.Regexp) (err error) {
	// TMPDIR must not be on an overlay, because the directory contains the upper layers of a box.
	dir, err := os.MkdirTemp("", "gpucdi-bench-")
	if err != nil {
		return fmt.Errorf("creating a directory: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()

	plugin, toolkit := strings.TrimPrefix(tools.NVIDIAPluginVersion, "v"), strings.TrimPrefix(tools.NVIDIAToolkitVersion, "v")
	b := &bench{
		dir:          dir,
		pluginTable:  table{other: "NVIDIA's device plugin " + plugin},
		toolkitTable: table{other: "NVIDIA's container toolkit " + toolkit},
		podTable:     table{other: "NVIDIA's device plugin " + plugin + " and container toolkit " + toolkit},
		driverTable:  table{other: "NVIDIA's DRA driver " + strings.TrimPrefix(tools.NVIDIADRADriverVersion, "v")},
		draTable:     table{other: "gpucdi's device plugin, without DRA"},
	}
	defer b.close()
	err = b.measure(ctx, selected)
	printed := b.print() // after a failure, the earlier measurements
	if err != nil {
		return err
	}
	return printed
}

// measure runs the selected stages.
func (b *bench) measure(ctx context.Context, selected *regexp.Regexp) error {
	out := progress.New(os.Stderr, 46)
	for _, s := range []struct {
		name   string
		do     func(context.Context) error
		always bool
	}{
		{"building gpucdi and NVIDIA's programs", b.build, true},
		{"installing the simulated driver", b.install, true},
		{fmt.Sprintf("starting the plugins %d times", startCount), b.starts, false},
		{fmt.Sprintf("making each call %d times, 8 GPUs", manyTurns*turn), b.eight, false},
		{fmt.Sprintf("making each call %d times, 16 GPUs", fewTurns*turn), b.sixteen, false},
		{fmt.Sprintf("16 GPUs × %d MIG devices × %d replicas", partitions, replicas), b.partitioned, false},
		{fmt.Sprintf("scraping the agent %d times", scrapeCount), b.scrapes, false},
		{fmt.Sprintf("idling for %s, then %d calls", 2*idle, load), b.live, false},
		{fmt.Sprintf("generating %d specs", 6*generateCount), b.generations, false},
		{fmt.Sprintf("starting %d containers", 5*containerCount), b.containers, false},
		{fmt.Sprintf("starting %d pods, then %d bursts of %d", 4*singleRounds*singlePods, 2*burstCount, burstSize), b.pods, false},
		{fmt.Sprintf("DRA: %d starts, then %d pods", 2*publications, 3*draRounds*draPods), b.onDRANode(b.publish, b.claims, b.forcedDeletes), false},
		{fmt.Sprintf("parts of GPUs: %d pods", 2*draRounds*draPods+3*bindings), b.onDRANode(b.parts), false},
	} {
		if !s.always && !selected.MatchString(s.name) {
			continue
		}
		done := out.Stage(s.name)
		if err := s.do(ctx); err != nil {
			out.Fail()
			return fmt.Errorf("%s: %w", s.name, err)
		}
		done()
	}
	return nil
}

// legend explains the terms of the tables.
const legend = `
Both sides of a table ran on this machine, with the same simulated driver. Times are medians.
ratio    gpucdi divided by the other side; below 1 gpucdi is faster or smaller
target   the largest acceptable ratio if it ends with x, otherwise the largest value of gpucdi; MISSED if exceeded
+        in addition to an empty gRPC call, to a container or pod without a GPU, to a GET of the claim, to the agent
         without DRA, or to a claim for a whole GPU
Allocate, GetPreferredAllocation, ListAndWatch
         calls of the kubelet to a device plugin: give a pod its devices, choose which, list all
NodePrepareResources
         call of the kubelet to a DRA driver: give a pod the device of its claim
pod      from the request that creates a pod to the start of its container by containerd. NVIDIA: the defaults of
         the plugin's chart and of the toolkit (strategy envvar, nvidia-container-runtime as a RuntimeClass, which
         generates a CDI spec for each container); with CDI: containerd applies the plugin's CDI spec, with its hooks.
         With a claim: its ResourceClaimTemplate was created before; the other side requests nvidia.com/gpu
part     of a GPU: 25 cores and 20 GiB, which the driver limits
bound    from the request that creates a pod to its assignment to the node by the scheduler. New template: no earlier
         pod has requested the same vcuda-core and vcuda-memory
by force without a grace period, while the container of the pod still runs; the next pod has a claim of its own
burst    from the request that creates the first of the pods to the start of the last container
`

// print prints the tables, the legend and the summary. The error wraps errMissed if a target is missed.
func (b *bench) print() error {
	m := plain
	if term.IsTerminal(int(os.Stdout.Fd())) {
		m = colored
	}
	all := []*table{&b.podTable, &b.driverTable, &b.draTable, &b.pluginTable, &b.toolkitTable}
	for _, t := range all {
		if err := t.write(os.Stdout, m); err != nil {
			return err
		}
	}
	fmt.Print(legend)
	if err := writeSummary(os.Stdout, all...); err != nil {
		return err
	}
	if names := missed(all...); len(names) > 0 {
		return fmt.Errorf("%w: %s", errMissed, strings.Join(names, "; "))
	}
	return nil
}

// bench is the state that the stages share.
type bench struct {
	programs
	dir                       string
	nodes                     struct{ eight, sixteen, partitioned *node }
	pluginTable, toolkitTable table
	podTable                  table
	driverTable, draTable     table
}
