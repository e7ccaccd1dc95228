// Command gpucdi-nvml talks to the driver on behalf of gpucdi, which starts
// it from the directory that it stands in itself. People have no use
// for it.
//
// It is a program of its own, and a small one, so that it is there in a moment
// and holds little memory: docs/decisions/0003 says why it is a process.
package main

import (
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strconv"
	"syscall"
	"time"

	"github.com/gpucdi/gpucdi/gpu/nvml"
	"github.com/gpucdi/gpucdi/internal/host"
)

func main() {
	work, inside := parse()
	switch {
	case inside.idle > 0:
		// The kubelet asks the container to end, since it knows nothing of it.
		signal.Ignore(syscall.SIGTERM)
		time.Sleep(inside.idle)
		return
	case inside.look:
		if err := nvml.Look(flag.Args(), os.Stdout); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	go endWith(os.Stdin)
	if err := nvml.Serve(work); err != nil {
		os.Exit(1) // the agent has the error
	}
}

// inside is what the container of gpucdi doctor --launch does.
type inside struct {
	idle time.Duration
	look bool
}

// parse reads what driver.Run and the doctor write.
func parse() (nvml.Work, inside) {
	var work nvml.Work
	var in inside
	flag.DurationVar(&in.idle, "idle", 0, "do nothing for so long")
	flag.BoolVar(&in.look, "look", false, "tell what there is of the nodes and libraries that follow")
	root := flag.String("host-root", "/", "where this process sees the node's root")
	flag.StringVar(&work.Library, "library", "", "this process's path of NVML")
	flag.DurationVar(&work.Interval, "interval", 0, "the time between two probes")
	flag.DurationVar(&work.TrialAfter, "trial-after", 0, "the time until the doubted GPUs are tried; 0: never")
	flag.Func("doubted", "the index of a GPU to leave out until it answers a trial; can be repeated", func(value string) error {
		index, err := strconv.Atoi(value)
		work.Doubted = append(work.Doubted, index)
		return err
	})
	flag.Parse()
	work.Node = host.NewRoot(*root)
	return work, in
}

// endWith ends this process when the agent does, and with it its end of the
// pipe: a call into the driver may never come back to see that.
func endWith(agent io.Reader) {
	_, err := io.Copy(io.Discard, agent)
	fmt.Fprintln(os.Stderr, "the agent is gone", err)
	os.Exit(1)
}
