package cluster

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
)

// maxPasses bounds the passes of publish, which usually needs one for each write that the API server refuses because of
// invalid devices, one for the writes that it accepts, and one that finds nothing left to write.
const maxPasses = 16

// publish writes the slices that differ, until the API server has acknowledged all wanted devices.
func (p *Pool) publish(ctx context.Context) error {
	wrote := false
	for range maxPasses {
		want := p.latest()
		if want.revision == 0 {
			return nil
		}
		plan, err := p.plan(want)
		if err != nil {
			return fmt.Errorf("encoding ResourceSlices: %w", err)
		}
		if plan.empty() {
			p.acknowledge(want, plan, wrote)
			return nil
		}
		if restoring := want.revision == p.state.revision; restoring && !wrote {
			p.log.Info("restoring changed or deleted ResourceSlices", "changed", len(plan.changed), "obsolete", len(plan.obsolete))
			if p.limit.Wait(ctx) != nil {
				return nil // ctx ended
			}
		}
		wrote = true
		err = p.write(ctx, plan)
		if err != nil && !p.refuse(err) {
			p.report()
			return err
		}
		p.report()
	}
	return errors.New("publishing ResourceSlices: the API server does not store them as sent; check its admission webhooks")
}

// acknowledge records that the API server has acknowledged all wanted devices.
func (p *Pool) acknowledge(want wantedDevices, plan poolPlan, wrote bool) {
	p.state.revision, p.state.problem = want.revision, ""
	p.state.prune(plan)
	p.report()
	if wrote {
		s := p.Status()
		p.log.Info("ResourceSlices published", "devices", len(s.Devices), "slices", len(plan.names))
		if len(s.Dropped) > 0 {
			p.log.Warn("API server does not store all fields of ResourceSlices", "fields", s.Dropped,
				"remedy", "enable the feature gates of these fields, such as DRADeviceTaints")
		}
	}
}

// report publishes the status, and logs the foreign slices if they have changed.
func (p *Pool) report() {
	old, s := p.Status(), p.state.status()
	p.setStatus(s)
	if !slices.Equal(s.Foreign, old.Foreign) && len(s.Foreign) > 0 {
		p.log.Warn("another driver publishes ResourceSlices for this node", "driver", p.driver,
			"slices", len(s.Foreign), "first", s.Foreign[0].Name, "manager", s.Foreign[0].Manager,
			"remedy", "run only one driver of this name on a node")
	}
}

// write executes a plan. Deletions come first, so that devices are withdrawn even if the API server refuses the new
// ones.
func (p *Pool) write(ctx context.Context, plan poolPlan) error {
	for _, s := range plan.obsolete {
		if err := p.delete(ctx, s); err != nil {
			return err
		}
	}
	var uid string
	for _, change := range plan.changed {
		if uid == "" && (change.current == nil || !p.isOwned(*change.current)) {
			var err error
			if uid, err = p.client.NodeUID(ctx, p.node); err != nil {
				return err
			}
		}
		if err := p.put(ctx, change, uid); err != nil {
			return err
		}
	}
	return nil
}

// put creates or updates a slice. An update applies only to the version that was compared, and a name can be created
// only once, so a request that the API server executes late has no effect.
func (p *Pool) put(ctx context.Context, change sliceChange, nodeUID string) error {
	object := sliceObject{APIVersion: sliceAPIVersion, Kind: sliceKind, Spec: change.spec}
	method, path, verb := http.MethodPost, slicesPath, "creating"
	if change.current == nil {
		object.Metadata.Name = change.name
	} else {
		object.Metadata = change.current.sliceMetadata
		method, path, verb = http.MethodPut, slicesPath+"/"+url.PathEscape(change.name), "updating"
	}
	if change.current == nil || !p.isOwned(*change.current) {
		object.Metadata.Owners = []owner{{APIVersion: "v1", Kind: "Node", Name: p.node, UID: nodeUID, Controller: true}}
	}
	var stored slice
	err := p.client.exchangeObject(ctx, method, path+"?fieldManager="+fieldManager, object, &stored)
	if err != nil {
		if !Refused(err) { // after a refusal, an earlier write stays uncertain
			p.state.uncertain[change.name] = true
		}
		return &writeError{verb, change, err}
	}
	p.writes.Add(1)
	p.state.store(stored)
	p.state.accept(change, stored)
	delete(p.state.uncertain, change.name)
	return nil
}

// delete deletes a slice if it still has the given version.
func (p *Pool) delete(ctx context.Context, s slice) error {
	options := map[string]any{
		"apiVersion": "v1", "kind": "DeleteOptions",
		"preconditions": map[string]string{"uid": s.UID, "resourceVersion": s.ResourceVersion},
	}
	err := p.client.exchangeObject(ctx, http.MethodDelete, slicesPath+"/"+url.PathEscape(s.Name), options, nil)
	if err != nil && !errors.Is(err, ErrNotFound) {
		return &writeError{"deleting", sliceChange{name: s.Name, current: &s}, err}
	}
	if err == nil {
		p.writes.Add(1)
	}
	p.state.remove(s)
	return nil
}

// exchangeObject sends an object over a keep-alive connection, and decodes the response into stored unless stored is
// nil.
func (c *Client) exchangeObject(ctx context.Context, method, path string, object, stored any) error {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	request, err := c.newRequest(ctx, method, "application/json", object, path)
	if err != nil {
		return err
	}
	response, err := c.reuse(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if stored == nil {
		_, err := io.Copy(io.Discard, io.LimitReader(response.Body, objectLimit))
		return err
	}
	return decode(response.Body, objectLimit, stored)
}
