package dra

import (
	"encoding/json"
	"regexp"

	"github.com/gpucdi/gpucdi/allocator"
	"github.com/gpucdi/gpucdi/cluster"
	"github.com/gpucdi/gpucdi/internal/host"
)

// The API version and kind of the opaque parameters that select features for GPUs and MIG devices.
const (
	deviceVersion = "gpucdi.dev/v1"
	deviceConfig  = "DeviceConfig"
)

// maxFeatures bounds the features in a DeviceConfig; fewer exist.
const maxFeatures = 16

// validFeature is the format of a feature, as far as this package depends on it.
var validFeature = regexp.MustCompile(`^[a-z]{1,32}$`)

// featuresFor returns the features that the DeviceConfigs of a claim and its DeviceClass select for a device. They
// do not override each other, because a feature only adds to what a container gets.
func featuresFor(c cluster.Claim, d cluster.ClaimDevice) (allocator.Features, error) {
	var names []string
	for i, config := range c.Config {
		if config.Driver != d.Driver || !appliesTo(config, d.Request) || !isDeviceConfig(config.Parameters) {
			continue
		}
		selected, err := parseDeviceConfig(parametersPath(i), config.Parameters)
		if err != nil {
			return "", err
		}
		names = append(names, selected...)
	}
	return allocator.NewFeatures(names), nil
}

// isDeviceConfig reports whether opaque parameters are a DeviceConfig.
func isDeviceConfig(text json.RawMessage) bool {
	if len(text) > maxParameters {
		return false
	}
	o, err := parseObject("", text)
	return err == nil && o.text("apiVersion") == deviceVersion && o.text("kind") == deviceConfig
}

// parseDeviceConfig reads the features of the DeviceConfig at a path.
func parseDeviceConfig(path string, text json.RawMessage) ([]string, error) {
	o, err := parseObject(path, text)
	if err != nil {
		return nil, err
	}
	_, _ = o.text("apiVersion"), o.text("kind") // rest rejects fields that were not read
	features, err := o.texts("features")
	switch {
	case err != nil:
		return nil, err
	case len(features) == 0 || len(features) > maxFeatures:
		return nil, unsupported(path+".features", "%d features; use 1 to %d", len(features), maxFeatures)
	}
	for _, name := range features {
		if !validFeature.MatchString(name) {
			return nil, unsupported(path+".features", "%q; use names of driver capabilities", host.Printable(name, maxShown))
		}
	}
	return features, o.rest()
}

// texts reads a list of strings; nil if it is missing.
func (o object) texts(name string) (texts []string, err error) {
	value, found := o.fields[name]
	delete(o.fields, name)
	if !found {
		return nil, nil
	}
	if err := json.Unmarshal(value, &texts); err != nil {
		return nil, unsupported(o.path+"."+name, "want a list of strings")
	}
	return texts, nil
}
