package agent

import (
	"cmp"
	"context"
	"errors"

	"github.com/gpucdi/gpucdi/allocator"
	"github.com/gpucdi/gpucdi/cdi"
	"github.com/gpucdi/gpucdi/gpu"
	"github.com/gpucdi/gpucdi/internal/host"
)

// plan is what a reconcile makes of an observation. It is immutable.
type plan struct {
	own       *gpu.Inventory // all known devices with the faults that concern one device each
	inventory *gpu.Inventory // with those that concern the whole node, too
	parts     cdi.Parts      // of the spec
	resources []*allocator.Resource

	driverErr, specErr error // both concern every GPU
	written            bool  // the spec
	unchecked          error // see cdi.File.Unchecked

	proved map[string]bool // CDI devices that are on disk and can be used, by name
}

// inspect returns the plan for what the driver and the host have. Nothing of it is proved.
func (l *loop) inspect(ctx context.Context) *plan {
	p := &plan{driverErr: l.reading.Err}
	if p.driverErr == nil && len(l.known.GPUs) > 0 {
		p.parts, p.driverErr = l.inspectHost(ctx)
	}
	p.own = l.withOwnFaults(p.parts)
	p.inventory = p.own
	if p.driverErr != nil {
		p.inventory = l.known.WithFaults(everywhere(driverFault(p.driverErr)))
		if l.reading.Err != nil && !noDriver(p.driverErr) && !cdi.DriverLoaded(l.cfg.Node) {
			l.modules.load(ctx, "nvidia")
		}
	}
	p.resources = l.resources(p.inventory)
	return p
}

// inspectHost finds what the node has for its spec, and loads the modules that are
// missing.
func (l *loop) inspectHost(ctx context.Context) (parts cdi.Parts, err error) {
	for {
		parts, err = cdi.Inspect(l.cfg.Node, l.reading.Driver, l.known, l.config.CDI.Features)
		var missing *cdi.NotLoadedError
		if !errors.As(err, &missing) || !l.modules.load(ctx, missing.Module) {
			parts.Hook = l.config.CDI.Hook
			return parts, err
		}
	}
}

// resources returns those that the config makes of an inventory.
func (l *loop) resources(inv *gpu.Inventory) []*allocator.Resource {
	if !l.config.fault.None() {
		inv = &gpu.Inventory{} // only what pods may hold is listed
	}
	return allocator.Plan(inv, cdi.AgentKind, l.config.MIG.Strategy, l.config.Resources)
}

// writeSpec puts the spec on disk, and returns the plan with what is proved then. When no GPU can be
// given out there is nothing to write, and the spec that is there stays for the pods that run.
func (l *loop) writeSpec(inspected *plan) *plan {
	p := *inspected
	if len(p.parts.GPUs) > 0 && l.config.fault.None() {
		p.specErr = l.putSpec(&p)
	}
	p.unchecked = l.spec.Unchecked()
	if p.specErr != nil {
		p.inventory = p.inventory.WithFaults(everywhere(gpu.Fault{Code: gpu.FaultSpec, Message: gpu.OneLine(p.specErr)}))
		p.resources = l.resources(p.inventory)
	}
	return &p
}

func (l *loop) putSpec(p *plan) error {
	spec, err := cdi.Build(cdi.AgentKind, p.inventory, p.parts, []cdi.Name{cdi.ByUUID})
	if err != nil {
		return err
	}
	written, err := l.spec.Put(spec)
	if err != nil {
		return err
	}
	if p.written = written; written {
		l.log.Info("CDI spec written", "path", l.spec.Path, "devices", len(p.parts.GPUs))
	}
	p.proved = map[string]bool{}
	for _, d := range spec.Devices {
		p.proved[spec.Kind+"="+d.Name] = true
	}
	return nil
}

// withOwnFaults returns all that is known with the faults that concern one GPU or MIG
// device each, and none that concerns the whole node.
func (l *loop) withOwnFaults(parts cdi.Parts) *gpu.Inventory {
	return l.known.WithFaults(func(uuid string) gpu.Fault {
		return cmp.Or(l.health.Fault(uuid), parts.Faults[uuid])
	})
}

// driverFault returns the fault of all GPUs for a driver that cannot be used. Where one that is
// not there any more was searched for is logged once.
func driverFault(err error) gpu.Fault {
	if noDriver(err) {
		return gpu.Fault{Code: gpu.FaultDriver, Message: "the driver is gone", Remedy: "install it again"}
	}
	return gpu.Fault{Code: gpu.FaultDriver, Message: gpu.OneLine(err)}
}

// noDriver reports whether the node has no driver, which is a state, not a failure.
func noDriver(err error) bool {
	var missing *host.NoDriverError
	return errors.As(err, &missing)
}

// everywhere gives every GPU and MIG device the same fault.
func everywhere(fault gpu.Fault) func(uuid string) gpu.Fault {
	return func(string) gpu.Fault { return fault }
}
