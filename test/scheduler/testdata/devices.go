// Command devices prints the devices that gpucdi publishes for an inventory, and the preferred allocation of its device
// plugin: one line of JSON for each line of JSON on standard input.
package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"

	"github.com/gpucdi/gpucdi/allocator"
	"github.com/gpucdi/gpucdi/cluster"
	"github.com/gpucdi/gpucdi/dra"
	"github.com/gpucdi/gpucdi/gpu"
)

type request struct {
	Inventory gpu.Inventory // output of gpucdi list -o json
	Allocated []string      // UUIDs
	Size      int           // of the preferred allocation; 0 for none
}

type response struct {
	Devices   []cluster.Device // in the order of the slice
	Preferred []string         // UUIDs
}

func main() {
	in, out := json.NewDecoder(os.Stdin), json.NewEncoder(os.Stdout)
	for {
		var r request
		err := in.Decode(&r)
		if errors.Is(err, io.EOF) {
			return
		}
		if err == nil {
			var devices response
			if devices, err = r.publish(); err == nil {
				err = out.Encode(devices)
			}
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
}

func (r request) publish() (response, error) {
	allocated := func(id string) bool { return slices.Contains(r.Allocated, id) }
	var offers []dra.Offer
	var free []string
	resources := allocator.Plan(&r.Inventory, "gpucdi.dev/gpu", allocator.Policy{MIG: allocator.MIGMixed})
	for _, resource := range resources {
		for _, d := range resource.Devices {
			offers = append(offers, dra.Offer{ID: d.ID, Resource: resource.Name, Fault: d.Fault})
			if resource == resources[0] && !allocated(d.ID) {
				free = append(free, d.ID)
			}
		}
	}
	published := response{Devices: dra.Devices(&r.Inventory, dra.Pack(&r.Inventory, offers, allocated), cluster.NoSchedule)}
	if r.Size == 0 {
		return published, nil
	}
	var err error
	published.Preferred, err = resources[0].Prefer(free, nil, r.Size)
	return published, err
}
