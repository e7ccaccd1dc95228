package node

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"

	"github.com/gpucdi/gpucdi/test/product"
)

// RaceMemory is the memory limit of an agent with the race detector, which multiplies its usage.
const RaceMemory = "1Gi"

// AgentManifest returns the agent's manifest from a checkout, with a value for --spread. With the default, requests
// that are not urgent take too long for a test or a demo. With the race detector, the memory limit is RaceMemory.
func AgentManifest(checkout, spread string) ([]byte, error) {
	manifest, err := os.ReadFile(filepath.Join(checkout, "deploy/gpucdi.yaml"))
	if err != nil {
		return nil, fmt.Errorf("reading the agent's manifest: %w", err)
	}
	const first = "- {name: GPUCDI_CONFIG,"
	changed := bytes.Replace(manifest, []byte(first), []byte("- {name: GPUCDI_SPREAD, value: "+spread+"}\n            "+first), 1)
	if bytes.Equal(changed, manifest) {
		return nil, fmt.Errorf("setting the spread of the agent: its manifest lacks %q", first)
	}
	if product.RaceEnabled() {
		const limit = "memory: 128Mi"
		if !bytes.Contains(changed, []byte(limit)) {
			return nil, fmt.Errorf("raising the memory limit of the agent: its manifest lacks %q", limit)
		}
		changed = bytes.Replace(changed, []byte(limit), []byte("memory: "+RaceMemory), 1)
	}
	return changed, nil
}
