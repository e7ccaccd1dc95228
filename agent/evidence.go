package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/gpucdi/gpucdi/allocator"
	"github.com/gpucdi/gpucdi/cdi"
	"github.com/gpucdi/gpucdi/gpu"
	"github.com/gpucdi/gpucdi/kubelet"
	"github.com/gpucdi/gpucdi/runtime"
)

const (
	// evidenceTimeout bounds one answer of the kubelet or the container runtime.
	evidenceTimeout = 5 * time.Second
	// writeTimeout bounds the kubelet's write of a checkpoint, after which the old one is evidence, too.
	writeTimeout = time.Second
	// firstAnswer is how long after its start the agent waits for a source that may never answer. A node
	// without it has to do with the others.
	firstAnswer = 15 * time.Second
)

// evidence is what the kubelet and the container runtime last said about who holds devices; nil for a
// source that has never answered.
type evidence struct {
	allocatable *allocator.Allocatable
	pods        *allocator.PodResources
	checkpoint  *kubelet.Checkpoint
	runtime     *containers
}

// containers is an answer of the container runtime.
type containers struct {
	asked, answered time.Time
	absent          bool // no runtime answers
	runtime.Containers
}

// merge replaces the answers that there are newer ones of.
func (e *evidence) merge(newer evidence) {
	if newer.allocatable != nil {
		e.allocatable = newer.allocatable
	}
	if newer.pods != nil {
		e.pods = newer.pods
	}
	if newer.checkpoint != nil {
		e.checkpoint = newer.checkpoint
	}
	if newer.runtime != nil {
		e.runtime = newer.runtime
	}
}

// observation returns the evidence with the parts that h says the IDs stand for.
func (e *evidence) observation(h holdings) allocator.Observation {
	return allocator.Observation{Allocatable: e.allocatable, Pods: e.pods, Checkpoint: h.checkpoint(e.checkpoint), Runtime: h.runtime(e.runtime)}
}

// holdings knows what the IDs in evidence stand for.
type holdings struct {
	plan   []*allocator.Resource
	inv    *gpu.Inventory
	ledger allocator.Ledger
}

func (h holdings) checkpoint(c *kubelet.Checkpoint) *allocator.Checkpoint {
	if c == nil {
		return nil
	}
	ours := &allocator.Checkpoint{Asked: c.Asked, Answered: c.Answered, Version: c.Version, Registered: map[allocator.Key]bool{}}
	for _, held := range c.Held {
		if h.ours(held.Resource) || slices.ContainsFunc(held.CDI, isOurs) {
			key := allocator.Key{Outlet: held.Resource, ID: held.Device}
			ours.Held = append(ours.Held, allocator.Holding{Key: key, Part: h.part(held.Device), Pod: held.PodUID})
		}
	}
	for resource, ids := range c.Registered {
		for _, id := range ids {
			if h.ours(resource) {
				ours.Registered[allocator.Key{Outlet: resource, ID: id}] = true
			}
		}
	}
	return ours
}

// isOurs reports whether a CDI device is one that agents give out.
func isOurs(cdiName string) bool { return strings.HasPrefix(cdiName, cdi.AgentKind+"=") }

// ours reports whether agents of this node offer a resource, or may have under another config.
func (h holdings) ours(resource string) bool {
	if hasResource(h.plan, resource) || allocator.Offered(strings.TrimSuffix(resource, allocator.SharedSuffix)) {
		return true
	}
	for range h.ledger.Outlet(resource) {
		return true
	}
	return false
}

// part returns what an ID stands for, as far as it can be told.
func (h holdings) part(id string) allocator.Part {
	device := allocator.DeviceOf(id)
	part := h.device(device)
	if device == id {
		return part
	}
	for _, r := range h.plan {
		for _, d := range r.Devices {
			if d.ID == device && d.Shared() {
				part.Share = allocator.Share{Class: allocator.TimeSliced, Count: len(d.Replicas)}
			}
		}
	}
	return part
}

// device returns the GPU or MIG device of a UUID.
func (h holdings) device(uuid string) allocator.Part {
	if strings.HasPrefix(uuid, "GPU-") {
		return allocator.Part{GPU: uuid, Extent: allocator.ExtentWhole}
	}
	for e := range h.ledger.Entries() {
		if allocator.DeviceOf(e.ID) == uuid && e.Part.Extent != allocator.ExtentUnknown {
			return e.Part.Device()
		}
	}
	return allocator.MIGPart(h.inv, uuid)
}

func (h holdings) runtime(c *containers) *allocator.Runtime {
	if c == nil {
		return nil
	}
	r := &allocator.Runtime{Asked: c.asked, Answered: c.answered, Absent: c.absent, Sandboxes: c.Sandboxes}
	for _, d := range c.Devices {
		_, uuid, _ := strings.Cut(d.Device, "=")
		r.Containers = append(r.Containers, allocator.Container{Pod: d.Pod, Part: h.device(uuid)})
	}
	return r
}

// witness asks the kubelet and the container runtime who holds devices.
type witness struct {
	cfg     Config
	log     *slog.Logger
	started time.Time
	logged  string // the latest error, which is logged once

	latest                kubelet.Checkpoint // as last read
	checkpoints, runtimes dispensable
}

// dispensable is a source that the agent does without if it has not answered within firstAnswer.
type dispensable struct{ answered, given bool }

// excuse returns err, unless the source is done without.
func (w *witness) excuse(d *dispensable, consequence string, err error) error {
	if err == nil {
		d.answered = true
		return nil
	}
	if d.answered || time.Since(w.started) < firstAnswer {
		return err
	}
	if !d.given {
		d.given = true
		w.log.Warn(consequence, "err", gpu.OneLine(err))
	}
	return nil
}

// watchEvidence delivers what is asked for, until ctx ends. A source that does not answer is missing in
// the answer, which then comes late.
func (a *Agent) watchEvidence(ctx context.Context, ask <-chan allocator.Todo, answers chan<- evidence) {
	w, wait := witness{cfg: a.cfg, log: a.log, started: time.Now()}, retryFirst
	for {
		var todo allocator.Todo
		select {
		case <-ctx.Done():
			return
		case todo = <-ask:
		}
		answer, err := w.answer(ctx, todo)
		if ctx.Err() != nil {
			return
		}
		w.logFailure(err)
		if err == nil {
			wait = retryFirst
		} else {
			select {
			case <-ctx.Done():
			case <-time.After(wait):
			}
			wait = min(2*wait, retryLimit)
		}
		select {
		case answers <- answer:
		case <-ctx.Done():
			return
		}
	}
}

func (w *witness) logFailure(err error) {
	now := trouble(err)
	if now != "" && now != w.logged {
		w.log.Warn("device holders unknown, devices that may be held are kept for them", "err", now)
	}
	w.logged = now
}

// answer asks the sources in the order in which the release needs them.
func (w *witness) answer(ctx context.Context, todo allocator.Todo) (e evidence, err error) {
	var errs []error
	within := func(wanted bool, ask func(context.Context) error) {
		if !wanted {
			return
		}
		ctx, cancel := context.WithTimeout(ctx, evidenceTimeout)
		defer cancel()
		errs = append(errs, ask(ctx))
	}
	within(todo.Allocatable, func(ctx context.Context) error { e.allocatable, err = w.allocatable(ctx); return err })
	within(todo.Pods, func(ctx context.Context) error { e.pods, err = w.pods(ctx); return err })
	within(todo.Checkpoint, func(ctx context.Context) error { e.checkpoint, err = w.checkpoint(ctx, todo.Resend != ""); return err })
	within(todo.Runtime, func(ctx context.Context) error { e.runtime, err = w.containers(ctx); return err })
	return e, errors.Join(errs...)
}

func (w *witness) allocatable(ctx context.Context) (*allocator.Allocatable, error) {
	asked := time.Now()
	ids, err := kubelet.Allocatable(ctx, w.cfg.podResources())
	if err != nil {
		return nil, err
	}
	return &allocator.Allocatable{Asked: asked, Answered: time.Now(), IDs: ids}, nil
}

func (w *witness) pods(ctx context.Context) (*allocator.PodResources, error) {
	answer := &allocator.PodResources{Asked: time.Now(), Held: map[allocator.Key]bool{}}
	held, err := kubelet.Held(ctx, w.cfg.podResources())
	if err != nil {
		return nil, err
	}
	answer.Answered = time.Now()
	for _, h := range held {
		answer.Held[allocator.Key{Outlet: h.Resource, ID: h.Device}] = true
	}
	return answer, nil
}

// checkpoint reads the kubelet's checkpoint: the one after the last that was read, if the kubelet is about
// to write it and does so in time.
func (w *witness) checkpoint(ctx context.Context, writes bool) (*kubelet.Checkpoint, error) {
	if writes {
		ctx, cancel := context.WithTimeout(ctx, writeTimeout)
		defer cancel()
		if next, err := w.latest.After(ctx, w.cfg.devicePluginDir()); err == nil {
			w.latest = next
			return &next, nil
		}
	}
	asked := time.Now()
	now, err := kubelet.ReadCheckpoint(w.cfg.devicePluginDir())
	if err := w.excuse(&w.checkpoints, "the kubelet's checkpoint is not readable, taken for empty until the kubelet writes it again", err); err != nil {
		return nil, err
	}
	if err != nil {
		now = kubelet.Checkpoint{Asked: asked, Answered: time.Now()}
	}
	w.latest = now
	return &now, nil
}

func (w *witness) containers(ctx context.Context) (*containers, error) {
	answer := &containers{asked: time.Now()}
	var err error
	answer.Containers, err = runtime.ListContainers(ctx, w.cfg.Node, w.cfg.KubeletDir, cdi.AgentKind)
	if err != nil && ctx.Err() != nil { // slow is not absent: its containers may have devices
		return nil, fmt.Errorf("asking which containers have devices: %w", err)
	}
	if err := w.excuse(&w.runtimes, "no container runtime answers, the kubelet's records alone say who holds devices", err); err != nil {
		return nil, fmt.Errorf("asking which containers have devices: %w", err)
	}
	answer.absent, answer.answered = err != nil, time.Now()
	return answer, nil
}
