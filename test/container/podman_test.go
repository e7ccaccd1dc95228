package container_test

import (
	"strings"
	"testing"

	"github.com/gpucdi/gpucdi/test/container"
	"github.com/gpucdi/gpucdi/test/docs"
	"github.com/gpucdi/gpucdi/test/node/tools"
)

// Debian's podman with Debian's crun, as they are installed.
func TestPodmanTakesTheGeneratedDevices(t *testing.T) {
	if err := tools.InstallPackages(t.Context(), "podman"); err != nil {
		t.Fatal(err)
	}
	m := start(t, container.Config{})
	generate(t, m)
	loadDebian(t, m, "podman")
	takesDevices(t, m, "podman")
	t.Run("as the document says", func(t *testing.T) {
		blocks, err := docs.Blocks(t.Context(), "docs/without-kubernetes.md", "Without Kubernetes", "sh")
		if err != nil || len(blocks) != 2 {
			t.Fatalf("%d blocks, %v", len(blocks), err)
		}
		for i, want := range []string{"", "GPU 0: "} {
			out, err := m.Output(t.Context(), "sh", "-ec", blocks[i])
			if err != nil || !strings.HasPrefix(out, want) || strings.Count(out, "\n") != i {
				t.Errorf("%s prints %q, %v", blocks[i], out, err)
			}
		}
	})
}
