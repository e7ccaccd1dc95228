package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"time"
)

// claimsPath is the path of all claims.
const claimsPath = "/apis/resource.k8s.io/v1/resourceclaims"

// claimTimeout bounds the first attempt to read a claim. An idle connection may be dead.
const claimTimeout = 3 * time.Second

// Claim is a ResourceClaim with the fields that a DRA driver needs.
type Claim struct {
	Namespace, Name, UID string

	// Allocated reports whether the scheduler has allocated devices.
	Allocated bool
	Devices   []ClaimDevice // of all drivers
	Config    []ClaimConfig // of all drivers; first from DeviceClasses, then from the claim
	Consumers []Consumer
}

// ClaimDevice is a device that the scheduler allocated.
type ClaimDevice struct {
	Request     string `json:"request"` // name of the request, or "request/subrequest"
	Driver      string `json:"driver"`
	Pool        string `json:"pool"`
	Device      string `json:"device"`
	ShareID     string `json:"shareID"`     // empty unless the device allows multiple allocations
	AdminAccess bool   `json:"adminAccess"` // granted regardless of other allocations

	// Consumed has the consumed quantity of each capacity, if the device allows multiple allocations.
	Consumed map[string]string `json:"consumedCapacity"`
}

// ClaimConfig is the configuration of a driver.
type ClaimConfig struct {
	FromClass  bool            // from a DeviceClass; configuration from the claim overrides it
	Requests   []string        // empty for all requests
	Driver     string          // empty if the configuration is not opaque
	Parameters json.RawMessage // written by users, not validated
}

// Consumer is an object for which a claim is reserved, usually a pod.
type Consumer struct {
	APIGroup string `json:"apiGroup"`
	Resource string `json:"resource"` // "pods"
	Name     string `json:"name"`
	UID      string `json:"uid"`
}

// UnmarshalJSON decodes a ResourceClaim.
func (c *Claim) UnmarshalJSON(data []byte) error {
	var object struct {
		Metadata struct {
			Namespace string `json:"namespace"`
			Name      string `json:"name"`
			UID       string `json:"uid"`
		} `json:"metadata"`
		Status struct {
			Allocation *struct {
				Devices struct {
					Results []ClaimDevice `json:"results"`
					Config  []struct {
						Source   string   `json:"source"`
						Requests []string `json:"requests"`
						Opaque   struct {
							Driver     string          `json:"driver"`
							Parameters json.RawMessage `json:"parameters"`
						} `json:"opaque"`
					} `json:"config"`
				} `json:"devices"`
			} `json:"allocation"`
			ReservedFor []Consumer `json:"reservedFor"`
		} `json:"status"`
	}
	if err := json.Unmarshal(data, &object); err != nil {
		return err
	}
	m := object.Metadata
	*c = Claim{Namespace: m.Namespace, Name: m.Name, UID: m.UID, Consumers: object.Status.ReservedFor}
	allocation := object.Status.Allocation
	if allocation == nil {
		return nil
	}
	c.Allocated, c.Devices = true, allocation.Devices.Results
	for _, config := range allocation.Devices.Config {
		c.Config = append(c.Config, ClaimConfig{
			FromClass: config.Source == "FromClass", Requests: config.Requests,
			Driver: config.Opaque.Driver, Parameters: config.Opaque.Parameters,
		})
	}
	return nil
}

// Claim returns a claim. The error wraps ErrNotFound if it does not exist.
func (c *Client) Claim(ctx context.Context, namespace, name string) (claim Claim, err error) {
	address := c.host + "/apis/resource.k8s.io/v1/namespaces/" + url.PathEscape(namespace) + "/resourceclaims/" + url.PathEscape(name)
	if err = c.claim(ctx, claimTimeout, address, &claim); err != nil && statusCode(err) == 0 && ctx.Err() == nil {
		c.CloseIdle()
		err = c.claim(ctx, requestTimeout, address, &claim)
	}
	if err == nil && (claim.Namespace != namespace || claim.Name != name || claim.UID == "") {
		err = errors.New("the API server returned another object")
	}
	if err != nil {
		return Claim{}, fmt.Errorf("reading ResourceClaim %s/%s: %w", namespace, name, err)
	}
	return claim, nil
}

func (c *Client) claim(ctx context.Context, timeout time.Duration, address string, claim *Claim) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	return get(ctx, c.reuse, address, "application/json", objectLimit, claim)
}

// Claims returns the claims with allocated devices of a pool. They contain only these devices and the configuration of
// their driver. Claims lists the claims of all nodes, so it should be called rarely.
func (c *Client) Claims(ctx context.Context, driver, pool string) (claims []Claim, err error) {
	_, err = list(ctx, c.reuse, c.host+claimsPath, url.Values{}, "application/json", func(claim Claim) error {
		claim.Devices = slices.DeleteFunc(claim.Devices, func(d ClaimDevice) bool { return d.Driver != driver || d.Pool != pool })
		claim.Config = slices.DeleteFunc(claim.Config, func(config ClaimConfig) bool { return config.Driver != driver })
		if len(claim.Devices) > 0 {
			claims = append(claims, claim)
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("listing ResourceClaims: %w", err)
	}
	return claims, nil
}

// ClaimsInUse returns the claims in use with devices of a driver, from nodes whose ResourceSlices gpucdi wrote. Another
// vendor's driver of the same name can serve other nodes.
func (c *Client) ClaimsInUse(ctx context.Context, driver string) (claims []Claim, err error) {
	ours := map[string]bool{} // by pool: whether gpucdi wrote its slices
	_, err = list(ctx, c.roundTrip, c.host+claimsPath, url.Values{}, "application/json", func(claim Claim) error {
		claim.Devices = slices.DeleteFunc(claim.Devices, func(d ClaimDevice) bool { return d.Driver != driver })
		if len(claim.Consumers) > 0 && len(claim.Devices) > 0 {
			claims = append(claims, claim)
			ours[claim.Devices[0].Pool] = false // a claim has devices of one node
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("listing ResourceClaims: %w", err)
	}
	for pool := range ours {
		if ours[pool], err = c.publishes(ctx, driver, pool); err != nil {
			return nil, fmt.Errorf("reading the ResourceSlices of node %s: %w", pool, err)
		}
	}
	return slices.DeleteFunc(claims, func(claim Claim) bool { return !ours[claim.Devices[0].Pool] }), nil
}

// publishes reports whether gpucdi wrote the ResourceSlices of a node. It checks only the first slice, which every pool
// has.
func (c *Client) publishes(ctx context.Context, driver, node string) (bool, error) {
	var slice struct{}
	err := get(ctx, c.roundTrip, c.host+slicesPath+"/"+url.PathEscape(sliceName(driver, node, 0)), "application/json", objectLimit, &slice)
	if errors.Is(err, ErrNotFound) {
		return false, nil
	}
	return err == nil, err
}
