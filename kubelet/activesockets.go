package kubelet

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/gpucdi/gpucdi/internal/sockets"
)

// maxDialed bounds the number of sockets that are dialed.
const maxDialed = 64

// ActiveSockets returns the names of the sockets with a listener in a device-plugins directory, without the
// kubelet's own. Each belongs to a device plugin of the node. Sockets after the first 64 are ignored.
func ActiveSockets(ctx context.Context, dir string) (names []string, err error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, fmt.Errorf("listing device plugin sockets: %w", err)
	}
	dialed := 0
	for _, e := range entries {
		if e.Type() != fs.ModeSocket || e.Name() == kubeletSocketName || dialed == maxDialed {
			continue
		}
		dialed++
		if sockets.HasListener(ctx, filepath.Join(dir, e.Name())) {
			names = append(names, e.Name())
		}
	}
	return names, nil
}
