package cluster

import (
	"cmp"
	"encoding/json"
	"maps"
	"slices"
)

// poolPlan has the writes that make the slices match the wanted devices.
type poolPlan struct {
	specs    []sliceSpec
	names    []string
	obsolete []slice       // to delete
	changed  []sliceChange // to update, then to create
}

// sliceChange is a slice that is missing or differs.
type sliceChange struct {
	name    string
	spec    sliceSpec
	form    string // see specForm
	current *slice // nil if it is missing
}

func (p poolPlan) empty() bool { return len(p.obsolete) == 0 && len(p.changed) == 0 }

// plan compares the slices with the wanted devices.
func (p *Pool) plan(want wantedDevices) (plan poolPlan, err error) {
	accepted, err := p.acceptedDevices(want.devices)
	if err != nil {
		return plan, err
	}
	if !want.withdrawn {
		plan.specs = p.specs(accepted)
	}
	for i := range plan.specs {
		plan.names = append(plan.names, sliceName(p.driver, p.node, i))
	}
	generation := p.generation()
	newGeneration := false
	for i, spec := range plan.specs {
		change, differs, err := p.compare(plan.names[i], spec, generation)
		if err != nil {
			return plan, err
		}
		if change.current == nil || p.state.uncertain[change.name] {
			newGeneration = true
		}
		if differs {
			plan.changed = append(plan.changed, change)
		}
	}
	// A scheduler uses a pool only with all slices of the latest generation. The change of a single slice is atomic
	// without a new generation.
	if newGeneration || len(plan.changed) > 1 {
		if err := p.renew(&plan, generation+1); err != nil {
			return plan, err
		}
	}
	plan.obsolete = p.obsolete(plan.names)
	return plan, nil
}

// acceptedDevices returns the wanted devices that the API server has not refused, and drops the refusals of devices
// that changed or are no longer wanted.
func (p *Pool) acceptedDevices(want []Device) ([]Device, error) {
	if len(p.state.refused) == 0 {
		return want, nil
	}
	var accepted []Device
	refused := map[string]refusal{}
	for _, device := range want {
		encoded, err := json.Marshal(device)
		if err != nil {
			return nil, err
		}
		if r, ok := p.state.refused[device.Name]; ok && r.device == string(encoded) {
			refused[device.Name] = r
			continue
		}
		accepted = append(accepted, device)
	}
	p.state.refused = refused
	return accepted, nil
}

// specs distributes devices over slices. There is at least one, so that the pool exists.
func (p *Pool) specs(devices []Device) (specs []sliceSpec) {
	chunks := slices.Collect(slices.Chunk(devices, devicesPerSlice))
	if len(chunks) == 0 {
		chunks = [][]Device{nil}
	}
	for _, chunk := range chunks {
		spec := sliceSpec{
			Driver: p.driver, NodeName: p.node,
			Pool: slicePool{Name: p.node, Count: int64(len(chunks))},
		}
		for _, device := range chunk {
			spec.Devices = append(spec.Devices, p.sliceDevice(device))
		}
		specs = append(specs, spec)
	}
	return specs
}

// sliceDevice returns a device with the times at which its taints were added. Without them, each write would restart
// the tolerationSeconds of pods.
func (p *Pool) sliceDevice(device Device) sliceDevice {
	d := sliceDevice{Device: device}
	for _, taint := range device.Taints {
		d.Taints = append(d.Taints, sliceTaint{taint, p.state.added[taintKey{device.Name, taint}]})
	}
	return d
}

// generation returns the latest generation of gpucdi's slices of the pool. It ignores foreign slices: the agent does
// not compete with another driver.
func (p *Pool) generation() (latest int64) {
	for _, s := range p.state.own {
		if p.inPool(s) {
			latest = max(latest, s.spec.Pool.Generation)
		}
	}
	return latest
}

// inPool reports whether a slice has the immutable fields of the pool: driver, pool name and node name.
func (p *Pool) inPool(s slice) bool {
	return s.spec.Driver == p.driver && s.spec.Pool.Name == p.node && s.spec.NodeName == p.node
}

// compare reports whether a slice must be written: it differs from the wanted spec in a field that the API server
// stores, it has another generation, it lacks its owner, or its last write is uncertain.
func (p *Pool) compare(name string, spec sliceSpec, generation int64) (change sliceChange, differs bool, err error) {
	change = sliceChange{name: name, spec: spec}
	change.spec.Pool.Generation = generation
	encoded, err := json.Marshal(spec)
	if err != nil {
		return change, false, err
	}
	if change.form, err = specForm(encoded); err != nil {
		return change, false, err
	}
	current, ok := p.state.own[name]
	if !ok || !p.inPool(current) {
		return change, true, nil
	}
	change.current = &current
	a := p.state.accepted[name]
	same := current.form == change.form || a.sent == change.form && a.stored == current.form
	return change, !same || current.spec.Pool.Generation != generation || !p.isOwned(current) || p.state.uncertain[name], nil
}

// isOwned reports whether a slice has the Node as an owner. It ignores the UID: if the Node was recreated, the garbage
// collector deletes the slice.
func (p *Pool) isOwned(s slice) bool {
	return slices.ContainsFunc(s.Owners, func(o owner) bool { return o.Kind == "Node" && o.Name == p.node })
}

// renew makes a plan write all slices with a new generation.
func (p *Pool) renew(plan *poolPlan, generation int64) error {
	plan.changed = nil
	for i, spec := range plan.specs {
		change, _, err := p.compare(plan.names[i], spec, generation)
		if err != nil {
			return err
		}
		plan.changed = append(plan.changed, change)
	}
	// Updates come first: they withdraw devices.
	slices.SortStableFunc(plan.changed, func(a, b sliceChange) int {
		return cmp.Compare(missing(a), missing(b))
	})
	return nil
}

func missing(c sliceChange) int {
	if c.current == nil {
		return 1
	}
	return 0
}

// obsolete returns gpucdi's slices that are not in names, or that cannot be updated because they belong to another
// driver or pool.
func (p *Pool) obsolete(names []string) (obsolete []slice) {
	for _, name := range slices.Sorted(maps.Keys(p.state.own)) {
		if s := p.state.own[name]; !slices.Contains(names, name) || !p.inPool(s) {
			obsolete = append(obsolete, s)
		}
	}
	return obsolete
}
