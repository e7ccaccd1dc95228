package dra

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/gpucdi/gpucdi/cluster"
	"github.com/gpucdi/gpucdi/internal/host"
)

// errUnsupported means that the configuration of a claim has a setting that this version does not support.
var errUnsupported = errors.New("unsupported configuration")

// The supported kinds of opaque parameters, those of NVIDIA's driver.
const (
	parametersVersion = "resource.nvidia.com/v1beta1"
	gpuConfig         = "GpuConfig"
	migDeviceConfig   = "MigDeviceConfig"
)

const (
	// maxParameters bounds the size of opaque parameters in bytes. The API server allows 10 KiB.
	maxParameters = 64 << 10
	// maxShown bounds the part of a name that an error quotes, in bytes.
	maxShown = 64
)

// checkConfig returns an error if the configuration of a device of the driver is not supported.
func checkConfig(c cluster.Claim, driver string) error {
	for _, d := range c.Devices {
		if d.Driver != driver {
			continue
		}
		if err := checkConfigOf(c, d); err != nil {
			return err
		}
	}
	return nil
}

// checkConfigOf checks the last configuration that applies to a device. It overrides the earlier ones: that of a claim
// overrides that of its class.
func checkConfigOf(c cluster.Claim, d cluster.ClaimDevice) error {
	for i, config := range slices.Backward(c.Config) {
		if config.Driver != d.Driver || !appliesTo(config, d.Request) {
			continue
		}
		path := fmt.Sprintf("status.allocation.devices.config[%d].opaque.parameters", i)
		kind, err := checkParameters(path, config.Parameters)
		wanted, device := configFor(d)
		if err != nil || kind == wanted {
			return err
		}
		if len(config.Requests) > 0 {
			return unsupported(path+".kind", "%s is not for %s, which request %s has; use %s", kind, device, d.Request, wanted)
		}
		// One for all requests configures only their devices of its kind.
	}
	return nil
}

// configFor returns the kind of the parameters of a device, and what the device is.
func configFor(d cluster.ClaimDevice) (kind, device string) {
	if id, ok := DeviceID(d.Device); ok && isMIG(id) {
		return migDeviceConfig, "a MIG device"
	}
	return gpuConfig, "a GPU"
}

// unsupported returns an error for a field.
func unsupported(path, format string, args ...any) error {
	return fmt.Errorf("%w: %s: "+format, append([]any{errUnsupported, path}, args...)...)
}

// appliesTo reports whether a configuration applies to a request. One that names a request applies to all of its
// subrequests.
func appliesTo(c cluster.ClaimConfig, request string) bool {
	return len(c.Requests) == 0 || slices.Contains(c.Requests, request) || slices.Contains(c.Requests, mainRequest(request))
}

// checkParameters returns the kind of the opaque parameters at a path. Only those without any setting are supported.
func checkParameters(path string, text json.RawMessage) (kind string, err error) {
	if len(text) > maxParameters {
		return "", unsupported(path, "larger than %d bytes", maxParameters)
	}
	// Unlike a struct, a map distinguishes keys by case and has those that are unknown.
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(text, &fields); err != nil {
		return "", unsupported(path, "%w", err)
	}
	var version string
	_ = json.Unmarshal(fields["apiVersion"], &version) // empty if it is missing or not a string
	_ = json.Unmarshal(fields["kind"], &kind)
	if version != parametersVersion || kind != gpuConfig && kind != migDeviceConfig {
		return "", unsupported(path, "apiVersion %q and kind %q; use %s or %s of %s",
			host.Printable(version, maxShown), host.Printable(kind, maxShown), gpuConfig, migDeviceConfig, parametersVersion)
	}
	for _, name := range slices.Sorted(maps.Keys(fields)) {
		if name != "apiVersion" && name != "kind" && string(fields[name]) != "null" {
			return "", unsupported(path+"."+host.Printable(name, maxShown), "not supported yet; remove it")
		}
	}
	return kind, nil
}
