package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	nodebox "github.com/gpucdi/gpucdi/test/node"
)

// slicesPath is the path of the ResourceSlices in the API.
const slicesPath = "/apis/resource.k8s.io/v1/resourceslices"

// slicesTimeout bounds the wait for ResourceSlices.
const slicesTimeout = time.Minute

// sliceWatch counts the devices in ResourceSlices.
type sliceWatch struct {
	changes chan int // the number of devices after each event; closed when the watch ends
	devices int      // the last number that await has received
}

// watchSlices watches the ResourceSlices until ctx ends.
func watchSlices(ctx context.Context, api *endpoint) (*sliceWatch, error) {
	w := &sliceWatch{changes: make(chan int, 1000)}
	return w, api.watch(ctx, slicesPath, func(events io.Reader) {
		defer close(w.changes)
		countDevices(events, w.changes)
	})
}

// countDevices sends the number of devices in all slices after each event of a watch, until the watch ends.
func countDevices(events io.Reader, counts chan<- int) {
	decoder, bySlice, sum := json.NewDecoder(events), map[string]int{}, 0
	for {
		var event struct {
			Type   string
			Object struct {
				Metadata struct{ Name string }
				Spec     struct{ Devices []struct{} }
			}
		}
		if decoder.Decode(&event) != nil {
			return
		}
		name, devices := event.Object.Metadata.Name, len(event.Object.Spec.Devices)
		if event.Type == "DELETED" {
			devices = 0
		}
		sum += devices - bySlice[name]
		bySlice[name] = devices
		counts <- sum
	}
}

// await waits until the slices have want devices in total.
func (w *sliceWatch) await(ctx context.Context, want int) error {
	ctx, cancel := context.WithTimeout(ctx, slicesTimeout)
	defer cancel()
	for w.devices != want {
		select {
		case <-ctx.Done():
			return fmt.Errorf("waiting for %d devices in ResourceSlices, which have %d: %w", want, w.devices, ctx.Err())
		case now, ok := <-w.changes:
			if !ok {
				return errors.New("the API server ended the watch of ResourceSlices")
			}
			w.devices = now
		}
	}
	return nil
}

// deleteSlices deletes the slices of the node, as a kubelet does when it starts.
func (n *draNode) deleteSlices(ctx context.Context) error {
	if _, err := n.api.do(ctx, http.MethodDelete, slicesPath+"?fieldSelector=spec.nodeName%3D"+nodebox.Name, nil); err != nil {
		return err
	}
	return n.slices.await(ctx, 0)
}
