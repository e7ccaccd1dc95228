package cdi

import (
	"bytes"
	"encoding/json"
	"fmt"

	"go.yaml.in/yaml/v3"
	"tags.cncf.io/container-device-interface/specs-go"
)

// Format is the file format of a spec. Runtimes read both.
type Format string

// File formats.
const (
	YAML Format = "yaml"
	JSON Format = "json"
)

// Marshal encodes a spec. Equal specs give equal bytes.
func (f Format) Marshal(spec *specs.Spec) ([]byte, error) {
	data, err := f.encode(spec)
	if err != nil {
		return nil, fmt.Errorf("encoding the CDI spec of %s: %w", spec.Kind, err)
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
	encoder.CompactSeqIndent() // the style of kubectl
	encoder.SetIndent(2)
	err := encoder.Encode(spec)
	return data.Bytes(), err
}
