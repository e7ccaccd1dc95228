// Command gpucdi-nvml is the driver worker, the only process that loads NVML. It is installed next to gpucdi, which
// starts it; see docs/decisions/0003. It is not meant to be run by users.
package main

import (
	"flag"
	"fmt"
	"os"
	"strconv"

	"github.com/gpucdi/gpucdi/gpu"
	"github.com/gpucdi/gpucdi/gpu/nvml"
	"github.com/gpucdi/gpucdi/internal/host"
	"github.com/gpucdi/gpucdi/mps/probe"
)

func main() {
	cfg, libcuda := parseFlags()
	if libcuda != "" { // see mps.Control.Probe
		if err := probe.Run(libcuda); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	if program := flag.Args(); len(program) > 0 { // nvidia-smi, see driver.TimeSlicer
		fmt.Fprintln(os.Stderr, cfg.Mounts.Exec(program[0], program))
		os.Exit(1)
	}
	if err := nvml.Serve(cfg); err != nil {
		os.Exit(1) // Serve has reported the error
	}
}

// parseFlags parses the flags that packages driver and mps set.
func parseFlags() (cfg nvml.Config, libcuda string) {
	root := flag.String("host-root", "/", "root of the node's file system")
	flag.StringVar(&cfg.Library, "library", "", "path of NVML")
	flag.StringVar(&cfg.Mounts.Devices, "devices", "", "directory of the device nodes; empty: /dev")
	flag.StringVar(&cfg.Mounts.Cgroups, "cgroups", "", "directory of the node's cgroups; empty: "+host.CgroupDir)
	platform := flag.String("platform", "", "platform of the GPUs; empty: PCI GPUs")
	flag.DurationVar(&cfg.Interval, "interval", 0, "time between two probe cycles")
	flag.DurationVar(&cfg.TrialAfter, "trial-after", 0, "time from the start to the trial of quarantined GPUs; 0 disables it")
	flag.Func("quarantined", "index of a GPU to exclude until its trial succeeds; can be repeated", func(value string) error {
		index, err := strconv.Atoi(value)
		cfg.Quarantined = append(cfg.Quarantined, index)
		return err
	})
	flag.StringVar(&libcuda, "probe-cuda", "", "path of libcuda, to create a CUDA context and exit")
	flag.Parse()
	cfg.Node, cfg.Platform = host.NewRoot(*root), gpu.Platform(*platform)
	return cfg, libcuda
}
