// Command devices prints the devices that gpucdi publishes for an inventory, and the preferred allocation of its device
// plugin: one line of JSON for each line of JSON on standard input.
package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"

	"github.com/gpucdi/gpucdi/allocator"
	"github.com/gpucdi/gpucdi/cluster"
	"github.com/gpucdi/gpucdi/dra"
	"github.com/gpucdi/gpucdi/gpu"
)

type request struct {
	Inventory gpu.Inventory // output of gpucdi list -o json
	Allocated []string      // UUIDs
	Size      int           // of the preferred allocation; 0 for none

	// If Share is set, claims share all MIG devices and the GPUs at the indexes in Shared, or all GPUs if it is empty.
	Share     allocator.ShareUnit
	Replicas  int // with allocator.ShareReplicas
	Shared    []int
	Placement allocator.SharePlacement
	Held      map[string]allocator.Amount // of shared GPUs, by UUID
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
	held := map[string]allocator.Amount{}
	maps.Copy(held, r.Held)
	for _, uuid := range r.Allocated {
		held[uuid] = allocator.Amount{}
	}
	policy := allocator.Policy{MIG: allocator.MIGMixed, Shares: allocator.DefaultShares()}
	if r.Share != "" {
		policy.Mode = allocator.ModeDRA
		policy.Rules = allocator.Rules{
			{Select: allocator.Selector{Index: r.Shared}, Name: allocator.GPUResource, Share: r.Share, Replicas: r.Replicas, Level: allocator.LevelAny},
			{Select: allocator.Selector{MIG: "*"}, Share: r.Share, Replicas: r.Replicas, Level: allocator.LevelAny},
		}
	}
	var offers []dra.Offer
	var free []string
	resources := allocator.Plan(&r.Inventory, "gpucdi.dev/gpu", policy)
	for _, resource := range resources {
		for _, d := range resource.Devices {
			offers = append(offers, dra.Offer{ID: d.ID, Resource: d.Resource, Fault: d.Fault, Capacity: d.Capacity, Isolation: d.Isolation()})
			if _, isHeld := held[d.ID]; resource == resources[0] && !isHeld {
				free = append(free, d.ID)
			}
		}
	}
	published := response{Devices: dra.Devices(&r.Inventory, dra.Order(&r.Inventory, offers, held, r.Placement), cluster.NoSchedule)}
	if r.Size == 0 {
		return published, nil
	}
	var err error
	published.Preferred, err = resources[0].Prefer(free, nil, r.Size)
	return published, err
}
