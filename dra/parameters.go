package dra

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/gpucdi/gpucdi/cluster"
	"github.com/gpucdi/gpucdi/gpu"
	"github.com/gpucdi/gpucdi/internal/host"
)

// errUnsupported means that the configuration of a claim has a setting that this version does not support.
var errUnsupported = errors.New("unsupported configuration")

// The supported kinds of opaque parameters of NVIDIA's DRA driver.
const (
	parametersVersion = "resource.nvidia.com/v1beta1"
	gpuConfig         = "GpuConfig"
	migDeviceConfig   = "MigDeviceConfig"
)

const timeSlicing = "TimeSlicing"

const (
	// maxParameters bounds the size of opaque parameters in bytes. The API server allows 10 KiB.
	maxParameters = 64 << 10
	// maxShown bounds the part of a name that an error quotes, in bytes.
	maxShown = 64
)

// parameters are the settings for a device in opaque parameters.
type parameters struct {
	kind      string
	timeSlice gpu.TimeSlice // empty if none is requested

	deviceConfigs
}

// parametersFor returns the parameters of a device.
func parametersFor(c cluster.Claim, d cluster.ClaimDevice) (parameters, error) {
	configs, err := deviceConfigsFor(c, d)
	if err != nil {
		return parameters{}, err
	}
	p, err := lastParametersFor(c, d)
	p.deviceConfigs = configs
	return p, err
}

// parametersPath returns the path of the parameters of configuration i in its claim.
func parametersPath(i int) string {
	return fmt.Sprintf("status.allocation.devices.config[%d].opaque.parameters", i)
}

// lastParametersFor returns the parameters of NVIDIA's kinds from the last configuration that applies to a device. It
// overrides the earlier ones, so that the configuration of a claim overrides that of its DeviceClass.
func lastParametersFor(c cluster.Claim, d cluster.ClaimDevice) (parameters, error) {
	for i, config := range slices.Backward(c.Config) {
		if config.Driver != d.Driver || !appliesTo(config, d.Request) || isDeviceConfig(config.Parameters) {
			continue
		}
		path := parametersPath(i)
		parsed, err := parseParameters(path, config.Parameters)
		if err != nil {
			return parameters{}, err
		}
		wanted, device := kindFor(d)
		if parsed.kind == wanted {
			if parsed.timeSlice != "" && d.AdminAccess {
				return parameters{}, unsupported(path+".sharing", "request %s has adminAccess, and the GPU may be in use by others; remove sharing", d.Request)
			}
			return parsed, nil
		}
		if len(config.Requests) > 0 {
			return parameters{}, unsupported(path+".kind", "%s does not apply to %s, the device of request %s; use %s", parsed.kind, device, d.Request, wanted)
		}
		// A configuration for all requests applies only to devices of its kind.
	}
	return parameters{}, nil
}

// kindFor returns the kind of the parameters of a device, and a description of the device for messages.
func kindFor(d cluster.ClaimDevice) (kind, device string) {
	if id, ok := DeviceID(d.Device); ok && isMIG(id) {
		return migDeviceConfig, "a MIG device"
	}
	return gpuConfig, "a GPU"
}

// unsupported returns an error for a field.
func unsupported(path, format string, args ...any) error {
	return fmt.Errorf("%w: %s: "+format, append([]any{errUnsupported, path}, args...)...)
}

// appliesTo reports whether a configuration applies to a request. A configuration that names a request applies to all
// of its subrequests.
func appliesTo(c cluster.ClaimConfig, request string) bool {
	return len(c.Requests) == 0 || slices.Contains(c.Requests, request) || slices.Contains(c.Requests, mainRequest(request))
}

// parseParameters reads opaque parameters of NVIDIA's kinds at a path. A setting that is not supported is an error,
// because the pod relies on it.
func parseParameters(path string, text json.RawMessage) (parameters, error) {
	if len(text) > maxParameters {
		return parameters{}, unsupported(path, "larger than %d bytes; remove settings", maxParameters)
	}
	o, err := parseObject(path, text)
	if err != nil {
		return parameters{}, err
	}
	version, kind := o.text("apiVersion"), o.text("kind")
	if version != parametersVersion || kind != gpuConfig && kind != migDeviceConfig {
		return parameters{}, unsupported(path, "apiVersion %q and kind %q; use %s or %s of %s, or %s of %s",
			host.Printable(version, maxShown), host.Printable(kind, maxShown), gpuConfig, migDeviceConfig, parametersVersion, deviceConfig, deviceConfigVersion)
	}
	p := parameters{kind: kind}
	if o.has("sharing") {
		if p.timeSlice, err = parseSharing(o, kind); err != nil {
			return parameters{}, err
		}
	}
	return p, o.rest()
}

// parseSharing returns the time slice that the field sharing requests. It is empty for MIG devices, which
// have no time slices to set.
func parseSharing(o object, kind string) (gpu.TimeSlice, error) {
	sharing, err := o.object("sharing")
	if err != nil {
		return "", err
	}
	if strategy := sharing.text("strategy"); strategy != timeSlicing {
		return "", unsupported(sharing.path+".strategy", "%q; use %s", host.Printable(strategy, maxShown), timeSlicing)
	}
	if kind == migDeviceConfig {
		return "", sharing.rest()
	}
	slice := gpu.TimeSliceDefault
	if sharing.has("timeSlicingConfig") {
		config, err := sharing.object("timeSlicingConfig")
		if err != nil {
			return "", err
		}
		if config.has("interval") {
			slice = gpu.TimeSlice(config.text("interval"))
		}
		if !slices.Contains(gpu.TimeSlices, slice) {
			return "", unsupported(config.path+".interval", "%q; use one of %q", host.Printable(string(slice), maxShown), gpu.TimeSlices)
		}
		if err := config.rest(); err != nil {
			return "", err
		}
	}
	return slice, sharing.rest()
}

// object is a JSON object at a path. Unlike a struct, it distinguishes keys by case, and keeps unknown ones.
type object struct {
	path   string
	fields map[string]json.RawMessage // without those that were read
}

func parseObject(path string, text json.RawMessage) (object, error) {
	o := object{path: path}
	if err := json.Unmarshal(text, &o.fields); err != nil {
		return object{}, unsupported(path, "%w; use a JSON object", err)
	}
	maps.DeleteFunc(o.fields, func(_ string, value json.RawMessage) bool { return string(value) == "null" })
	return o, nil
}

func (o object) has(name string) bool { return o.fields[name] != nil }

// text reads a string; empty if it is missing or not a string.
func (o object) text(name string) (text string) {
	_ = json.Unmarshal(o.fields[name], &text)
	delete(o.fields, name)
	return text
}

func (o object) object(name string) (object, error) {
	value := o.fields[name]
	delete(o.fields, name)
	return parseObject(o.path+"."+name, value)
}

// rest returns an error if there are fields that were not read.
func (o object) rest() error {
	if len(o.fields) == 0 {
		return nil
	}
	names := strings.Join(slices.Sorted(maps.Keys(o.fields)), ", ")
	return unsupported(o.path+"."+host.Printable(names, maxShown), "not supported; remove it")
}
