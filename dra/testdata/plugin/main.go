// Command plugin runs a dra.Driver for the tests in test/dramanager, which are in a module that depends on
// k8s.io/kubernetes and cannot import package dra. It reads claims from JSON files and the health of its device from
// standard input, and has a gate without a ledger.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/gpucdi/gpucdi/allocator"
	"github.com/gpucdi/gpucdi/cluster"
	"github.com/gpucdi/gpucdi/dra"
	"github.com/gpucdi/gpucdi/gpu"
)

// claims is a directory of ResourceClaims, in files <namespace>_<name>.json.
type claims string

func (c claims) Claim(_ context.Context, namespace, name string) (claim cluster.Claim, err error) {
	data, err := os.ReadFile(filepath.Join(string(c), filepath.Base(namespace+"_"+name)+".json"))
	if errors.Is(err, fs.ErrNotExist) {
		return claim, cluster.ErrNotFound
	}
	if err == nil {
		err = json.Unmarshal(data, &claim)
	}
	return claim, err
}

// gate grants a device to one claim at a time.
type gate struct {
	mu      sync.Mutex
	claims  map[string]allocator.Claim
	changed chan struct{}
}

func (g *gate) Prepare(c allocator.Claim) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	for uid, other := range g.claims {
		for _, id := range c.Devices {
			if uid != c.UID && slices.Contains(other.Devices, id) {
				return fmt.Errorf("%w: %s is prepared for claim %s", allocator.ErrHeld, id, other)
			}
		}
	}
	g.claims[c.UID] = c
	return nil
}

func (g *gate) Restore(c allocator.Claim) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.claims[c.UID] = c
}

func (g *gate) Unprepare(uid string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.claims, uid)
	close(g.changed)
	g.changed = make(chan struct{})
}

func (g *gate) Cancel(uid string) { g.Unprepare(uid) }

func (g *gate) Claim(uid string) (allocator.Claim, bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	c, found := g.claims[uid]
	return c, found
}

func (g *gate) Claims() []allocator.Claim {
	g.mu.Lock()
	defer g.mu.Unlock()
	return slices.Collect(maps.Values(g.claims))
}

func (g *gate) Changed() <-chan struct{} {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.changed
}

// The arguments are the kubelet's directory, the state directory and the directory of the claims. Each line of standard
// input is the ID of the node's only device, followed by its fault if it has one. The program ends with its input.
func main() {
	driver := dra.New(dra.Config{
		Driver: "gpu.nvidia.com", Pool: "node", CDIKind: "gpucdi.dev/gpu", KubeletDir: os.Args[1], StateDir: os.Args[2],
		Claims: claims(os.Args[3]), Gate: &gate{claims: map[string]allocator.Claim{}, changed: make(chan struct{})},
	}, slog.Default())
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		defer cancel()
		for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
			id, fault, faulty := strings.Cut(lines.Text(), " ")
			device := dra.DeviceHealth{ID: id}
			if faulty {
				device.Fault = gpu.Fault{Code: "test", Message: fault}
			}
			driver.UpdateHealth([]dra.DeviceHealth{device})
		}
	}()
	if err := driver.Run(ctx); err != nil {
		slog.Error("driver ended", "err", err)
		os.Exit(1)
	}
}
