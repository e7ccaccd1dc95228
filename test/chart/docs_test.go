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
