package main

import (
	"strings"
	"testing"

	"github.com/gpucdi/gpucdi/test/docs"
)

// The values in the documents render valid objects that contain them.
func TestDocumentedValues(t *testing.T) {
	for section, want := range map[string]struct{ document, part string }{
		"Select nodes":         {"docs/deploy.md", "feature.node.kubernetes.io/pci-0302_10de.present"},
		"OpenShift":            {"docs/hardened.md", "system:openshift:scc:privileged"},
		"AppArmor and seccomp": {"docs/hardened.md", "appArmorProfile"},
		"Bottlerocket":         {"docs/hardened.md", "type: super_t"},
	} {
		blocks, err := docs.Blocks(t.Context(), want.document, section, "yaml")
		if err != nil {
			t.Fatal(err)
		}
		out, err := helmValues(t, blocks[0], "template", "gpucdi")
		if err != nil {
			t.Errorf("%s: %v", section, err)
			continue
		}
		if !strings.Contains(out, want.part) {
			t.Errorf("%s: %s is not in\n%s", section, want.part, out)
		}
		for _, object := range objects(out) {
			if _, err := create(t.Context(), object); err != nil {
				t.Errorf("%s: %v", section, err)
			}
		}
	}
}

// The command in docs/alerts.md renders the alerting rules and the dashboard.
func TestDocumentedAlerts(t *testing.T) {
	blocks, err := docs.Blocks(t.Context(), "docs/alerts.md", "Alerts", "sh")
	if err != nil {
		t.Fatal(err)
	}
	flags, found := strings.CutPrefix(strings.TrimSpace(blocks[0]), "helm upgrade gpucdi deploy/gpucdi --namespace gpucdi --reuse-values ")
	if !found {
		t.Fatalf("unexpected command %q", blocks[0])
	}
	out, err := helm(t.Context(), "template", append([]string{"gpucdi", "--namespace", "gpucdi"}, strings.Fields(flags)...)...)
	if err != nil {
		t.Fatal(err)
	}
	for _, part := range []string{"kind: PrometheusRule", "- alert: GPUAgentDown", "gpucdi.json: "} {
		if !strings.Contains(out, part) {
			t.Errorf("%q is not rendered", part)
		}
	}
}
