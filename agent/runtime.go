package agent

import (
	"context"
	"time"

	"github.com/gpucdi/gpucdi/apiserver"
	"github.com/gpucdi/gpucdi/runtime"
	"github.com/gpucdi/gpucdi/status"
)

const (
	// runtimeInterval is how often the runtime is asked; it may be upgraded
	// or configured anew at any time.
	runtimeInterval = time.Minute
	// mendingInterval is the same for one that needs mending: somebody may be at
	// that, and waits to see whether it helped.
	mendingInterval = 5 * time.Second
	// runtimeRetry is how soon one that does not answer is asked again, for
	// the first time; then ever later.
	runtimeRetry = time.Second
	// runtimeTimeout is what one asking may take.
	runtimeTimeout = 10 * time.Second
)

// watchRuntime says in the log what the node's runtime would do with CDI
// devices, each time that the answer changes, until ctx ends.
func (a *Agent) watchRuntime(ctx context.Context) {
	said := ""
	say := func(message string, log func(string, ...any), args ...any) {
		if message != said {
			log(message, args...)
			said = message
		}
	}
	retry := runtimeRetry
	for {
		wait := runtimeInterval
		info, err := a.detectRuntime(ctx)
		if err == nil {
			retry = runtimeRetry
			a.view.runtime.Store(&status.Runtime{Name: info.Name, Version: info.Version, CDI: info.CDI,
				SpecDirs: info.SpecDirs, Trouble: info.Problem(a.cfg.CDIDir)})
		}
		switch {
		case ctx.Err() != nil:
			return
		case err != nil:
			a.view.runtime.Store(&status.Runtime{Trouble: oneLine(err)})
			wait, retry = retry, min(2*retry, runtimeInterval)
			say("no container runtime answers yet: is its socket below --host-root?", a.log.Warn, "err", oneLine(err))
		case info.Problem(a.cfg.CDIDir) != "":
			wait = mendingInterval
			if said != info.Problem(a.cfg.CDIDir) {
				a.events.Record(apiserver.Event{Type: apiserver.Warning, Reason: runtimeWithoutCDI, Message: info.Problem(a.cfg.CDIDir)})
			}
			say(info.Problem(a.cfg.CDIDir), a.log.Error, "socket", info.Socket)
		default:
			say(info.Name+" "+info.Version+" does CDI", a.log.Info, "socket", info.Socket, "specDirs", info.SpecDirs)
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(wait):
		}
	}
}

func (a *Agent) detectRuntime(ctx context.Context) (runtime.Info, error) {
	ctx, cancel := context.WithTimeout(ctx, runtimeTimeout)
	defer cancel()
	return runtime.Detect(ctx, a.cfg.Node, a.cfg.KubeletDir)
}
