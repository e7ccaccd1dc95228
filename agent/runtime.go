package agent

import (
	"context"
	"time"

	"github.com/gpucdi/gpucdi/gpu"
	"github.com/gpucdi/gpucdi/runtime"
	"github.com/gpucdi/gpucdi/status"
)

const (
	// runtimeInterval is how often the runtime is inspected; it may be upgraded
	// or configured anew at any time.
	runtimeInterval = time.Minute
	// problemInterval is the same for one with a problem: somebody may be fixing
	// it, and waits for the result.
	problemInterval = 5 * time.Second
	// runtimeTimeout bounds one inspection.
	runtimeTimeout = 10 * time.Second
)

// watchRuntime yields what the container runtime of the node does with CDI devices.
func (a *Agent) watchRuntime(ctx context.Context, yield func(runtime.Info)) error {
	for {
		info, err := a.detectRuntime(ctx)
		if err != nil {
			return err
		}
		yield(info)
		wait := runtimeInterval
		if info.Problem(a.cfg.CDIDir) != "" {
			wait = problemInterval
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(wait):
		}
	}
}

func (a *Agent) detectRuntime(ctx context.Context) (runtime.Info, error) {
	ctx, cancel := context.WithTimeout(ctx, runtimeTimeout)
	defer cancel()
	return runtime.Detect(ctx, a.cfg.Node, a.cfg.KubeletDir)
}

func (a *Agent) runtimeStatus(u update[runtime.Info]) status.Runtime {
	if u.err != nil {
		return status.Runtime{Trouble: gpu.OneLine(u.err)}
	}
	return status.Runtime{Name: u.value.Name, Version: u.value.Version, CDI: u.value.CDI,
		SpecDirs: u.value.SpecDirs, Trouble: u.value.Problem(a.cfg.CDIDir)}
}
