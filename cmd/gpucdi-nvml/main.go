// Command gpucdi-nvml is the driver worker: the only process that loads NVML. gpucdi starts it from
// its own directory, see docs/decisions/0003. It is not for people.
package main

import (
	"flag"
	"fmt"
	"io"
	"os"
	"strconv"

	"github.com/gpucdi/gpucdi/gpu/nvml"
	"github.com/gpucdi/gpucdi/internal/host"
)

func main() {
	work := parse()
	go endWith(os.Stdin)
	if err := nvml.Serve(work); err != nil {
		os.Exit(1) // the agent has the error
	}
}

// parse reads the flags that package driver sets.
func parse() nvml.Work {
	var work nvml.Work
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
	return work
}

// endWith ends this process when the agent ends, and with it its end of the pipe: a hung call into
// the driver never returns to notice it.
func endWith(agent io.Reader) {
	_, err := io.Copy(io.Discard, agent)
	fmt.Fprintln(os.Stderr, "the agent is gone", err)
	os.Exit(1)
}
