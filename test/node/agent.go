package node

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
)

// AgentManifest returns the agent's manifest from a checkout, with a value for --spread. With the default, requests
// that are not urgent take too long for a test or a demo.
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
	return changed, nil
}
