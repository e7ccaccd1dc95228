package agent

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	"github.com/gpucdi/gpucdi/allocator"
	"github.com/gpucdi/gpucdi/cdi"
	"github.com/gpucdi/gpucdi/gpu"
	"github.com/gpucdi/gpucdi/internal/host"
)

// plan is the desired state that a reconcile computes from an observation. It is immutable.
type plan struct {
	deviceFaults *gpu.Inventory // known devices with their own faults
	inventory    *gpu.Inventory // the same, with the fault of the node if there is one
	parts        cdi.Parts      // of the CDI spec
	variants     map[cdi.Feature]variant
	resources    []*allocator.Resource
	requested    []string // see allocator.Policy.Requested

	driverErr, specErr error // faults of the node
	written            bool  // the CDI spec changed on disk
	unchecked          error // see cdi.File.Unchecked

	verified map[string]bool // CDI devices whose spec is on disk and passed all checks, by qualified name; nil before writeSpec
}

// inspect returns the plan for the latest inventory and the host, with nothing verified yet.
func (l *loop) inspect(ctx context.Context) *plan {
	p := &plan{driverErr: l.driver.Err}
	if p.driverErr == nil && len(l.known.GPUs) > 0 {
		p.parts, p.driverErr = l.inspectHost(ctx, l.config.CDI.Features, true)
	}
	if len(p.parts.GPUs) > 0 {
		p.variants = l.inspectVariants(ctx, p.parts.Features)
	}
	p.deviceFaults = l.withDeviceFaults(p.parts)
	p.inventory = p.deviceFaults
	if p.driverErr != nil {
		p.inventory = l.known.WithFaults(uniformFault(driverFault(p.driverErr)))
		if l.driver.Err != nil && !noDriver(p.driverErr) && !cdi.DriverLoaded(l.cfg.Node) {
			l.modules.load(ctx, "nvidia")
		}
	}
	p.resources = l.resources(p)
	return p
}

// inspectHost finds the device nodes and driver files for a CDI spec. If the features are required, it loads missing
// kernel modules.
func (l *loop) inspectHost(ctx context.Context, features cdi.Features, required bool) (parts cdi.Parts, err error) {
	for {
		parts, err = cdi.Inspect(l.cfg.Node, l.driver.Driver, l.known, features)
		var missing *cdi.NotLoadedError
		if !errors.As(err, &missing) || !required || !l.modules.load(ctx, missing.Module) {
			parts.Hook = l.config.CDI.Hook
			return parts, err
		}
	}
}

// resources returns the resources of a plan under the config in effect, and sets its requested.
func (l *loop) resources(p *plan) []*allocator.Resource {
	inv, policy := p.inventory, l.config.Policy()
	p.requested, _ = l.gate.Requested()
	policy.VariantFaults, policy.Requested = p.variantFaults(), p.requested
	if !l.config.fault.None() {
		inv = &gpu.Inventory{} // advertise only devices that pods may hold
	}
	return allocator.Plan(inv, cdi.AgentKind, policy)
}

// writeSpec writes and verifies the CDI spec, and returns the plan with the verified devices. Without a usable GPU or a
// config in effect, it keeps the existing spec, which running pods need.
func (l *loop) writeSpec(inspected *plan) *plan {
	p := *inspected
	p.verified = map[string]bool{}
	if len(p.parts.GPUs) > 0 && l.config.fault.None() {
		p.specErr = l.putSpec(&p)
		l.putVariants(&p)
	}
	p.unchecked = l.spec.Unchecked()
	if p.specErr != nil {
		p.inventory = p.inventory.WithFaults(uniformFault(gpu.Fault{Code: gpu.FaultSpec, Message: gpu.OneLine(p.specErr)}))
	}
	p.resources = l.resources(&p)
	return &p
}

func (l *loop) putSpec(p *plan) error {
	spec, err := cdi.Build(cdi.AgentKind, p.inventory, p.parts, []cdi.NameStrategy{cdi.ByUUID})
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
	p.verify(cdi.QualifiedNames(spec))
	return nil
}

// verify records that CDI devices are verified.
func (p *plan) verify(names []string) {
	for _, name := range names {
		p.verified[name] = true
	}
}

// injectable implements dra.Config.Injectable.
func (p *plan) injectable(id string) error {
	if p.verified[cdi.AgentKind+"="+id] {
		return nil
	}
	if p.verified == nil {
		return fmt.Errorf("%w: the CDI spec is not written yet", allocator.ErrHeld)
	}
	if err := errors.Join(p.driverErr, p.specErr); err != nil {
		return fmt.Errorf("%w: the CDI spec does not contain it: %s", allocator.ErrHeld, gpu.OneLine(err))
	}
	if fault := p.inventory.Fault(id); !fault.None() {
		return fmt.Errorf("%w: %s", allocator.ErrUnhealthy, fault)
	}
	return fmt.Errorf("%w: the CDI spec does not contain it; run gpucdi status", allocator.ErrUnhealthy)
}

// withDeviceFaults returns the known devices with their own faults, without those of the node.
func (l *loop) withDeviceFaults(parts cdi.Parts) *gpu.Inventory {
	return l.known.WithFaults(func(uuid string) gpu.Fault {
		return cmp.Or(l.health.Fault(uuid), parts.Faults[uuid], l.mpsFaults[uuid])
	})
}

// driverFault returns the fault of all GPUs for an unusable driver. If the driver was removed, the fault omits the
// searched locations, which logDriver logs.
func driverFault(err error) gpu.Fault {
	if noDriver(err) {
		return gpu.Fault{Code: gpu.FaultDriver, Message: "the NVIDIA driver was removed", Remedy: "install it"}
	}
	return gpu.Fault{Code: gpu.FaultDriver, Message: gpu.OneLine(err)}
}

// noDriver reports whether err means that no driver is installed, which is a state of the node, not a failure.
func noDriver(err error) bool {
	var missing *host.NoDriverError
	return errors.As(err, &missing)
}

// uniformFault returns fault for every UUID.
func uniformFault(fault gpu.Fault) func(uuid string) gpu.Fault {
	return func(string) gpu.Fault { return fault }
}
