package dra

import (
	"cmp"
	"encoding/json"
	"regexp"

	"github.com/gpucdi/gpucdi/allocator"
	"github.com/gpucdi/gpucdi/cluster"
	"github.com/gpucdi/gpucdi/internal/host"
)

// The API version and kind of gpucdi's own opaque parameters. They apply to GPUs and MIG devices.
const (
	deviceConfigVersion = "gpucdi.dev/v1"
	deviceConfig        = "DeviceConfig"
)

// maxFeatures bounds the features in a DeviceConfig; fewer exist.
const maxFeatures = 16

// maxFeature bounds a feature's name, in bytes, and featurePattern is its format. Config.Variants checks whether the
// feature exists.
const maxFeature = 32

var featurePattern = regexp.MustCompile(`^[a-z]+$`)

// deviceConfigs are the settings for a device in the DeviceConfigs of a claim and its DeviceClass.
type deviceConfigs struct {
	features     allocator.Features
	ceiling      int // of the compute time, from the claim, in percent of the GPU; 0: none
	classCeiling int // the same from the DeviceClass
}

// deviceConfigsFor returns the settings for a device. They do not override each other: the features add up, and the
// lowest ceiling applies.
func deviceConfigsFor(c cluster.Claim, d cluster.ClaimDevice) (all deviceConfigs, err error) {
	var names []string
	for i, config := range c.Config {
		if config.Driver != d.Driver || !appliesTo(config, d.Request) || !isDeviceConfig(config.Parameters) {
			continue
		}
		parsed, err := parseDeviceConfig(parametersPath(i), config.Parameters)
		if err != nil {
			return deviceConfigs{}, err
		}
		names = append(names, parsed.features...)
		ceiling := &all.ceiling
		if config.FromClass {
			ceiling = &all.classCeiling
		}
		if *ceiling == 0 || parsed.ceiling != 0 && parsed.ceiling < *ceiling {
			*ceiling = parsed.ceiling
		}
	}
	all.features = allocator.NewFeatures(names)
	return all, nil
}

// ceilingOf returns the ceiling of a claim with some of the cores of a device; 0: none. The ceiling of the class limits
// the claim, but a claim without a ceiling does not get more than its cores.
func (c deviceConfigs) ceilingOf(cores uint64) int {
	if c.classCeiling == 0 {
		return c.ceiling
	}
	return min(cmp.Or(c.ceiling, int(cores)), c.classCeiling)
}

// isDeviceConfig reports whether opaque parameters are a DeviceConfig.
func isDeviceConfig(text json.RawMessage) bool {
	if len(text) > maxParameters {
		return false
	}
	o, err := parseObject("", text)
	return err == nil && o.text("apiVersion") == deviceConfigVersion && o.text("kind") == deviceConfig
}

// parsedDeviceConfig is the content of a DeviceConfig.
type parsedDeviceConfig struct {
	features []string
	ceiling  int // of the compute time, in percent of the GPU; 0: none
}

// parseDeviceConfig reads the DeviceConfig at a path. A DeviceConfig without any setting is an error.
func parseDeviceConfig(path string, text json.RawMessage) (parsed parsedDeviceConfig, err error) {
	o, err := parseObject(path, text)
	if err != nil {
		return parsed, err
	}
	_, _ = o.text("apiVersion"), o.text("kind") // rest rejects fields that were not read
	if !o.has("features") && !o.has("computeCeiling") {
		return parsed, unsupported(path, "no setting; set features or computeCeiling")
	}
	if o.has("computeCeiling") {
		if parsed.ceiling, err = o.percent("computeCeiling"); err != nil {
			return parsed, err
		}
	}
	if o.has("features") {
		if parsed.features, err = o.features(); err != nil {
			return parsed, err
		}
	}
	return parsed, o.rest()
}

// features reads the names of features.
func (o object) features() ([]string, error) {
	features, err := o.texts("features")
	switch {
	case err != nil:
		return nil, err
	case len(features) == 0 || len(features) > maxFeatures:
		return nil, unsupported(o.path+".features", "%d features; use 1 to %d", len(features), maxFeatures)
	}
	for _, name := range features {
		if len(name) > maxFeature || !featurePattern.MatchString(name) {
			return nil, unsupported(o.path+".features", "%q; use names of driver capabilities", host.Printable(name, maxShown))
		}
	}
	return features, nil
}

// percent reads an integer from 1 to 100.
func (o object) percent(name string) (percent int, err error) {
	value := o.fields[name]
	delete(o.fields, name)
	if err := json.Unmarshal(value, &percent); err != nil || percent < 1 || percent > 100 {
		return 0, unsupported(o.path+"."+name, "%s; use an integer from 1 to 100", host.Printable(string(value), maxShown))
	}
	return percent, nil
}

// texts reads a list of strings; nil if it is missing.
func (o object) texts(name string) (texts []string, err error) {
	value, found := o.fields[name]
	delete(o.fields, name)
	if !found {
		return nil, nil
	}
	if err := json.Unmarshal(value, &texts); err != nil {
		return nil, unsupported(o.path+"."+name, "use a list of strings")
	}
	return texts, nil
}
