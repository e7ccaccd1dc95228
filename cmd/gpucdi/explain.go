package main

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/gpucdi/gpucdi/allocator"
	"github.com/gpucdi/gpucdi/status"
)

func newExplainCommand() *cobra.Command {
	var address string
	cmd := &cobra.Command{
		Use:   "explain CLAIM|GPU",
		Short: "Explain the allocation of a GPU or ResourceClaim",
		Long: `Explain why a GPU or a ResourceClaim is in its state: through which API the GPU is
advertised, to which pods it is allocated, what it waits for, or why a claim was not prepared.
CLAIM is namespace/name; GPU is an index such as 3 or 3:1, a UUID, a name in the
ResourceSlices, or a CDI device name such as gpucdi.dev/gpu=GPU-….graphics.`,
		Example: `  kubectl exec --namespace gpucdi daemonset/gpucdi -- gpucdi explain default/one-gpu`,
		Args:    checkArgs(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			node, err := status.Fetch(cmd.Context(), address)
			if err != nil {
				return err
			}
			return explain(cmd.OutOrStdout(), node, args[0])
		},
	}
	cmd.Flags().StringVar(&address, "address", defaultAddress, "address of the agent, host:port")
	return cmd
}

func explain(w io.Writer, n status.Node, subject string) error {
	if namespace, name, isClaim := strings.Cut(subject, "/"); isClaim && !strings.Contains(subject, "=") {
		return explainClaim(w, n, namespace, name)
	}
	subject = allocator.DeviceOfCDI(subject)
	found := false
	for _, d := range n.Devices {
		if subject == d.Index || strings.EqualFold(subject, d.ID) {
			found = true
			explainDevice(w, n, d)
		}
	}
	for _, e := range n.Excluded {
		if subject == e.Index || strings.EqualFold(subject, e.ID) {
			found = true
			line(w, "GPU %s (%s) is not advertised: excluded by %s of the config", e.Index, e.ID, e.Rule)
		}
	}
	if !found {
		return fmt.Errorf("explaining %q: no such GPU on this node; run gpucdi status for a list, or use namespace/name for a claim", subject)
	}
	return nil
}

// explainDevice describes a device of a resource or of the ResourceSlices. A GPU that moves between them has a device
// in each.
func explainDevice(w io.Writer, n status.Node, d status.Device) {
	line(w, "GPU %s (%s, %s), advertised through %s", d.Index, cmp.Or(n.Product(d), "unknown product"), d.ID, d.Resource)
	state := string(d.Health())
	if !d.Healthy() {
		state += " for " + since(d)
	}
	line(w, "  state:        %s", state)
	if why := reason(d, false); why != "-" {
		line(w, "  reason:       %s", why)
	}
	if len(d.Features) > 0 {
		line(w, "  features:     those of the node, and %s", strings.Join(d.Features, ", "))
	}
	if len(d.AllocatedTo) == 0 {
		line(w, "  allocated to: no pod")
	}
	for _, h := range d.AllocatedTo {
		line(w, "  allocated to: %s/%s/%s%s", h.Namespace, h.Pod, h.Container, throughClaim(h))
	}
	if n.DRA == nil {
		return
	}
	for _, c := range n.DRA.Claims {
		if slices.Contains(c.Devices, d.ID) {
			line(w, "  prepared for: claim %s/%s, %s", c.Namespace, c.Name, preparedWhen(c))
		}
	}
}

func preparedWhen(c status.Claim) string {
	if c.Prepared.IsZero() {
		return "by an earlier agent"
	}
	return age(c.Prepared) + " ago"
}

// forPods describes the pods of a claim. Those of a claim without a record are unknown.
func forPods(c status.Claim) string {
	if c.Prepared.IsZero() {
		return ""
	}
	return ", for " + cmp.Or(strings.Join(c.Pods, ", "), "no pod")
}

func throughClaim(h status.Holder) string {
	if h.Claim == "" {
		return ""
	}
	return ", through claim " + h.Claim
}

func explainClaim(w io.Writer, n status.Node, namespace, name string) error {
	if n.DRA == nil {
		return fmt.Errorf("explaining claim %s/%s: DRA is disabled on this node; set the chart value dra.enabled", namespace, name)
	}
	found := false
	is := func(otherNamespace, otherName string) bool {
		same := otherNamespace == namespace && otherName == name
		found = found || same
		return same
	}
	for _, c := range n.DRA.Claims {
		if is(c.Namespace, c.Name) {
			line(w, "Claim %s/%s was prepared %s%s", namespace, name, preparedWhen(c), forPods(c))
			explainDevices(w, n, c.Devices)
		}
	}
	for _, c := range n.DRA.Waiting {
		if is(c.Namespace, c.Name) {
			line(w, "Claim %s/%s has waited %s to be prepared: %s", namespace, name, age(c.Since), c.Message)
		}
	}
	for _, r := range n.DRA.Refused {
		if is(r.Namespace, r.Name) {
			line(w, "The kubelet's latest call for claim %s/%s failed %s ago (%s): %s", namespace, name, age(r.At), r.Reason, r.Message)
		}
	}
	if !found {
		line(w, "Claim %s/%s is not prepared on this node, and the agent has recorded no failure to prepare it", namespace, name)
	}
	return nil
}

// explainDevices writes the health of the devices of a claim.
func explainDevices(w io.Writer, n status.Node, ids []string) {
	for _, id := range ids {
		for _, d := range n.Devices {
			if d.ID == id {
				line(w, "  GPU %s (%s): %s", d.Index, d.ID, d.Health())
			}
		}
	}
}
