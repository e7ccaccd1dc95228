package cdi

import (
	"encoding/json"
	"fmt"

	"go.yaml.in/yaml/v2"
	"tags.cncf.io/container-device-interface/specs-go"
)

// Format is how a spec is written down. Runtimes read both.
type Format string

// The formats.
const (
	YAML Format = "yaml"
	JSON Format = "json"
)

// Marshal renders the spec, byte for byte the same for equal specs.
func (f Format) Marshal(spec *specs.Spec) ([]byte, error) {
	data, err := f.encode(spec)
	if err != nil {
		return nil, fmt.Errorf("rendering the CDI spec of %s: %w", spec.Kind, err)
	}
	return data, nil
}

func (f Format) encode(spec *specs.Spec) ([]byte, error) {
	if f == JSON {
		data, err := json.MarshalIndent(spec, "", "  ")
		return append(data, '\n'), err
	}
	// As kubectl writes it, by version 2: version 3 takes thrice as long for the
	// many mounts of a spec.
	return yaml.Marshal(spec)
}
