package config

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"syscall"

	"go.yaml.in/yaml/v3"
	"k8s.io/apimachinery/pkg/labels"
)

const (
	apiVersion = "gpucdi.dev/v1"
	kind       = "NodeConfig"
)

// SectionLabel is the node label that selects a section. NVIDIA's device plugin selects a config by the same label.
const SectionLabel = "nvidia.com/device-plugin.config"

// File is a valid NodeConfig file.
type File struct {
	base     Config
	sections []section
	text     []byte
}

// Text returns the contents of the file, as passed to Parse; nil if there is no file.
func (f *File) Text() []byte { return f.text }

// Node is the node that sections are matched against.
type Node struct {
	Name   string
	Labels map[string]string
}

// document is the schema of the file.
type document struct {
	APIVersion string `yaml:"apiVersion"`
	Kind       string `yaml:"kind"`
	Config     `yaml:",inline"`

	// Sections for some nodes, each with any of the keys above except apiVersion and kind, and at
	// least one of the following. A section applies to a node that matches one of them:
	Nodes []section `yaml:"nodes"`
}

// section overrides keys on the nodes that match any of its first three keys.
type section struct {
	Section  string   `yaml:"section"`  // value of the node label nvidia.com/device-plugin.config
	Names    []string `yaml:"names"`    // names of nodes
	Selector string   `yaml:"selector"` // label selector, as for kubectl get nodes --selector
	Config   `yaml:",inline"`

	selector labels.Selector // Selector, parsed
	node     yaml.Node       // distinguishes missing keys from keys set to the default
}

// maxSize bounds a file, in bytes. The YAML decoder compares each key of a mapping with all others, so decoding
// takes quadratic time.
const maxSize = 128 << 10

// Load reads and validates the file at path; an empty path stands for an empty file. The error names every problem
// of the file, or only the first error of its syntax.
func Load(path string) (*File, error) {
	if path == "" {
		return &File{base: Default()}, nil
	}
	// Opening a named pipe without O_NONBLOCK blocks until it has a writer.
	file, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, fmt.Errorf("reading config: %w", err)
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return nil, fmt.Errorf("reading config: %w", err)
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("reading config %s: not a regular file", path)
	}
	config, err := Read(file)
	if err != nil {
		return nil, fmt.Errorf("reading config %s: %w", path, err)
	}
	return config, nil
}

// Read reads and validates a file of at most 128 KiB from r, until EOF.
func Read(r io.Reader) (*File, error) {
	data, err := io.ReadAll(io.LimitReader(r, maxSize+1))
	if err != nil {
		return nil, err
	}
	if len(data) > maxSize {
		return nil, fmt.Errorf("larger than %d bytes", maxSize)
	}
	return Parse(data)
}

// Parse validates a file and applies it on top of the default. Unknown keys are errors, so that a misspelled key is
// not silently ignored.
func Parse(data []byte) (*File, error) {
	doc := document{APIVersion: apiVersion, Kind: kind, Config: Default()}
	err := decode(data, &doc)
	if err != nil && !errors.As(err, new(*yaml.TypeError)) {
		return nil, err
	}
	dropped, keys := schemaErrors(data)
	if keys != nil {
		err = keys // instead of the decoder's, which name Go types
	}
	err = errors.Join(err, checkSingle(data))
	if !dropped { // the decoder has set the keys that have the right type, and each item has its index
		err = errors.Join(err, doc.validate())
	}
	if err != nil {
		return nil, err
	}
	return &File{base: doc.Config, sections: doc.Nodes, text: data}, nil
}

// decode decodes the first document of data.
func decode(data []byte, doc *document) error {
	decoder := yaml.NewDecoder(bytes.NewReader(data))
	decoder.KnownFields(true)
	err := decoder.Decode(doc)
	if errors.Is(err, io.EOF) {
		return nil // empty, or only comments
	}
	var raw struct {
		Nodes []yaml.Node `yaml:"nodes"`
	}
	_ = yaml.Unmarshal(data, &raw) // fails only if Decode did
	for i := range min(len(doc.Nodes), len(raw.Nodes)) {
		doc.Nodes[i].node = raw.Nodes[i]
	}
	return err
}

// checkSingle returns an error if data has more than one document.
func checkSingle(data []byte) error {
	decoder := yaml.NewDecoder(bytes.NewReader(data))
	for range 2 {
		if err := decoder.Decode(&yaml.Node{}); errors.Is(err, io.EOF) {
			return nil
		}
	}
	return errors.New("want one YAML document, got several")
}

// validate returns every problem, one per line, each with its key.
func (d *document) validate() error {
	var errs []error
	if d.APIVersion != apiVersion {
		errs = append(errs, fmt.Errorf("apiVersion: want %s, got %q", apiVersion, d.APIVersion))
	}
	if d.Kind != kind {
		errs = append(errs, fmt.Errorf("kind: want %s, got %q", kind, d.Kind))
	}
	base := d.Config.validate()
	errs = append(errs, base)
	for i := range d.Nodes {
		s := &d.Nodes[i]
		if s.Section == "" && len(s.Names) == 0 && s.Selector == "" {
			errs = append(errs, fmt.Errorf("nodes[%d]: want section, names or selector, got none", i))
		}
		errs = append(errs, prefixLines(fmt.Sprintf("nodes[%d].", i), withoutLines(s.validate(d.Config), base)))
	}
	return errors.Join(errs...)
}

func (s *section) validate(base Config) error {
	var err error
	if s.selector, err = labels.Parse(s.Selector); err != nil {
		err = fmt.Errorf("selector: want a label selector, got %q: %w", s.Selector, err)
	}
	return errors.Join(err, s.apply(base).validate())
}

// apply returns base with the keys of the section replaced.
func (s *section) apply(base Config) Config {
	merged := section{Config: base}
	_ = s.node.Decode(&merged) // decode has returned the error
	return merged.Config
}

func (s *section) matches(node Node) bool {
	byLabel := s.Section != "" && node.Labels[SectionLabel] == s.Section
	bySelector := s.Selector != "" && s.selector.Matches(labels.Set(node.Labels))
	return byLabel || bySelector || slices.Contains(s.Names, node.Name)
}

// MissingSection returns the value of the node's SectionLabel if no section has that name, and "" otherwise.
func (f *File) MissingSection(node Node) string {
	name := node.Labels[SectionLabel]
	if slices.ContainsFunc(f.sections, func(s section) bool { return s.Section == name }) {
		return ""
	}
	return name
}

// SelectsByLabel reports whether the effective config may depend on the labels of the node.
func (f *File) SelectsByLabel() bool {
	return slices.ContainsFunc(f.sections, func(s section) bool { return s.Section != "" || s.Selector != "" })
}

// For returns the effective config of a node. Later sections override earlier ones. Valid sections may contradict each
// other, so For validates the result.
func (f *File) For(node Node) (Config, error) {
	cfg := f.base
	for _, s := range f.sections {
		if s.matches(node) {
			cfg = s.apply(cfg)
		}
	}
	if err := cfg.validate(); err != nil {
		return Config{}, fmt.Errorf("merging config sections of this node: %w", err)
	}
	return cfg, nil
}
