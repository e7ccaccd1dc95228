package kubelet

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path/filepath"
	"slices"
	"strings"

	"github.com/gpucdi/gpucdi/allocator"
	"github.com/gpucdi/gpucdi/internal/host"
)

// claimsName is the file of the DRA manager in the kubelet's root directory.
const claimsName = "dra_manager_state"

// PreparedClaim is a ResourceClaim in the checkpoint of the kubelet's DRA manager. The kubelet adds a claim before the
// drivers prepare it, and removes it after they have unprepared it.
type PreparedClaim struct {
	UID, Namespace, Name string

	Pods    []string         // UIDs; sorted
	Drivers []string         // of the allocated devices; sorted
	Devices []PreparedDevice // empty until the drivers have prepared the claim
}

// PreparedDevice is a device of a PreparedClaim.
type PreparedDevice struct {
	Driver, Pool, Name string
	Requests           []string // of the claim
	CDI                []string // qualified CDI device names
}

// devices returns the device IDs in the claim's CDI device names of the given kind. certain are those that a container
// has, given the devices that the pod resources API lists for it.
func (c PreparedClaim) devices(kind string, listed func(PreparedDevice) bool) (all, certain []string) {
	for _, d := range c.Devices {
		ids := d.ids(kind)
		all = append(all, ids...)
		if c.hasSingleRequest() && listed(d) {
			certain = append(certain, ids...)
		}
	}
	return all, certain
}

// hasSingleRequest reports whether the claim has a single request, so that each container that uses the claim has all of
// its devices. It is false if that is uncertain, as with several drivers: a driver need not return its devices.
func (c PreparedClaim) hasSingleRequest() bool {
	var requests []string
	for _, d := range c.Devices {
		requests = append(requests, d.Requests...)
	}
	slices.Sort(requests)
	return len(c.Drivers) == 1 && len(slices.Compact(requests)) <= 1
}

// ids returns the device IDs in the CDI device names of the given kind.
func (d PreparedDevice) ids(kind string) (ids []string) {
	for _, name := range d.CDI {
		if strings.HasPrefix(name, kind+"=") {
			ids = append(ids, allocator.DeviceOfCDI(name))
		}
	}
	return ids
}

// PreparedClaims returns the claims of all drivers in the checkpoint, sorted by UID. dir is the kubelet's root
// directory on the node. The result is nil without an error if the file does not exist; a kubelet with DRA creates it
// when it starts.
func PreparedClaims(node host.Root, dir string) ([]PreparedClaim, error) {
	path := filepath.Join(dir, claimsName)
	data, err := node.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("reading the kubelet's prepared claims: %w", err)
	}
	claims, err := parseClaims(data)
	if err != nil {
		return nil, fmt.Errorf("reading the kubelet's prepared claims in %s: %w", path, err)
	}
	return claims, nil
}

// parseClaims decodes the format of Kubernetes 1.32 and later (pkg/kubelet/cm/dra/state).
func parseClaims(data []byte) (claims []PreparedClaim, err error) {
	var file struct{ Data string }
	if err := json.Unmarshal(data, &file); err != nil {
		return nil, err
	}
	var state struct {
		ClaimInfoStateList *[]struct {
			ClaimUID, ClaimName, Namespace string

			PodUIDs     map[string]struct{}
			DriverState map[string]struct {
				Devices []struct {
					PoolName, DeviceName string
					RequestNames         []string
					CDIDeviceIDs         []string
				}
			}
		}
	}
	if err := json.Unmarshal([]byte(file.Data), &state); err != nil {
		return nil, err
	}
	if state.ClaimInfoStateList == nil {
		// In an unknown format the list has another name. An empty result would release the claims in it.
		if !strings.Contains(file.Data, `"ClaimInfoStateList":null`) {
			return nil, errors.New("no list of claims; the version of the kubelet is not supported")
		}
		return []PreparedClaim{}, nil
	}
	claims = []PreparedClaim{}
	for _, c := range *state.ClaimInfoStateList {
		claim := PreparedClaim{UID: c.ClaimUID, Namespace: c.Namespace, Name: c.ClaimName,
			Pods: slices.Sorted(maps.Keys(c.PodUIDs)), Drivers: slices.Sorted(maps.Keys(c.DriverState))}
		for _, driver := range claim.Drivers {
			for _, d := range c.DriverState[driver].Devices {
				claim.Devices = append(claim.Devices, PreparedDevice{driver, d.PoolName, d.DeviceName, d.RequestNames, d.CDIDeviceIDs})
			}
		}
		claims = append(claims, claim)
	}
	slices.SortFunc(claims, func(a, b PreparedClaim) int { return cmp.Compare(a.UID, b.UID) })
	return claims, nil
}
