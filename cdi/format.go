package cdi

import (
	"bytes"
	"encoding/json"
	"fmt"

	"go.yaml.in/yaml/v3"
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
	var data bytes.Buffer
	encoder := yaml.NewEncoder(&data)
	encoder.CompactSeqIndent() // both as kubectl writes it
	encoder.SetIndent(2)
	err := encoder.Encode(spec)
	return data.Bytes(), err
}
