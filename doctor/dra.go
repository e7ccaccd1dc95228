package doctor

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/gpucdi/gpucdi/allocator"
)

// dra checks the DRA driver and the ResourceSlices if DRA is enabled, and previews a change of allocation.mode.
func (e *examination) dra(context.Context) []Finding {
	const check = checkDRA
	d := e.status.DRA
	if d == nil {
		return nil // disabled, or the agent does not respond, which the agent check reports
	}
	var findings []Finding
	switch {
	case d.Registered.IsZero():
		findings = append(findings, fail(check, fmt.Sprintf("%s is not registered with the kubelet: %s", d.Driver, d.Error), "")...)
	case d.Error != "":
		findings = append(findings, fail(check, fmt.Sprintf("%s is registered with an error: %s", d.Driver, d.Error), "")...)
	}
	if d.Slices.Error != "" {
		findings = append(findings, fail(check, "the ResourceSlices are not up to date: "+d.Slices.Error, "")...)
	}
	if len(d.Slices.Foreign) > 0 {
		findings = append(findings, fail(check, "another program wrote ResourceSlices of this driver and node: "+strings.Join(d.Slices.Foreign, ", "),
			"run only one driver of this name on a node")...)
	}
	if len(findings) > 0 {
		return findings
	}
	if len(d.Slices.Dropped) > 0 {
		findings = warn(check, "the API server does not store "+strings.Join(d.Slices.Dropped, ", "),
			"enable the feature gates of DRA, or upgrade Kubernetes")
	}
	return append(findings, pass(check, fmt.Sprintf("%s is registered, %d devices are in the ResourceSlices; %s", d.Driver, d.Slices.Devices, e.movePreview()))...)
}

// movePreview describes how many devices would move between the device plugin and DRA if allocation.mode changed, and
// when. Devices whose rule sets the mode would not move.
func (e *examination) movePreview() string {
	fixed := map[string]bool{}
	if e.snapshot != nil {
		for _, a := range allocator.Assign(e.snapshot.Inventory, e.settings.Policy()) {
			fixed[a.Device.ID] = a.Rule.Mode != ""
		}
	}
	free, held, condition := 0, 0, ""
	var pods []string
	for _, d := range e.status.Devices {
		switch {
		case fixed[d.ID]:
		case len(d.AllocatedTo) > 0:
			held++
			for _, h := range d.AllocatedTo {
				pods = append(pods, h.Namespace+"/"+h.Pod)
			}
		case d.State == "":
			free++
			if d.Resource == e.status.DRA.Driver {
				condition = ", unless a claim is allocated that is not prepared yet"
			}
		}
	}
	if held == 0 {
		return fmt.Sprintf("all %d would move immediately if allocation.mode changed%s", free, condition)
	}
	slices.Sort(pods)
	return fmt.Sprintf("if allocation.mode changed, %d would move immediately%s, and %d when these pods end: %s",
		free, condition, held, strings.Join(slices.Compact(pods), ", "))
}
