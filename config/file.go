package config

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"syscall"

	"go.yaml.in/yaml/v3"
	"k8s.io/apimachinery/pkg/labels"
)

// The file's own type.
const (
	apiVersion = "gpucdi.dev/v1"
	kind       = "NodeConfig"
)

// SectionLabel is the label of a node whose value names a section, as it names
// a config of NVIDIA's device plugin.
const SectionLabel = "nvidia.com/device-plugin.config"

// File is a NodeConfig file: what holds on every node, and what holds on some.
type File struct {
	base     Config
	sections []section
	text     []byte
}

// Text returns the file as it is written, for Parse; nil if there is none.
func (f *File) Text() []byte { return f.text }

// Node is what sections tell a node by.
type Node struct {
	Name   string
	Labels map[string]string
}

// document is a file as it is written.
type document struct {
	APIVersion string `yaml:"apiVersion"`
	Kind       string `yaml:"kind"`
	Config     `yaml:",inline"`

	// What holds on some nodes only: sections, each with any of the keys from cdi on, and with one or
	// more of these. A section holds on a node that one of them fits:
	Nodes []section `yaml:"nodes"`
}

// section is a part of the file for the nodes that any of its first three keys
// fits.
type section struct {
	Section  string   `yaml:"section"`  // the value of its label nvidia.com/device-plugin.config
	Names    []string `yaml:"names"`    // its name is one of these
	Selector string   `yaml:"selector"` // its labels fit this, written as for kubectl get nodes --selector
	Config   `yaml:",inline"`

	fits    labels.Selector // Selector, parsed
	written yaml.Node       // tells keys that are left out from those that are the default
}

// maxSize bounds a file, in bytes. The YAML decoder compares each key of a mapping with all others,
// so that the time for a file of nothing but keys grows with the square of its size.
const maxSize = 128 << 10

// Load reads the file at path; an empty path means that there is none. The
// error names everything that is wrong with the file.
func Load(path string) (*File, error) {
	if path == "" {
		return &File{base: Default()}, nil
	}
	data, err := read(path)
	if err != nil {
		return nil, fmt.Errorf("reading the config: %w", err)
	}
	file, err := Parse(data)
	if err != nil {
		return nil, fmt.Errorf("reading the config %s: %w", path, err)
	}
	return file, nil
}

// read reads a regular file. Opening a named pipe would block until it has a writer.
func read(path string) ([]byte, error) {
	file, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%s is not a regular file", path)
	}
	data, err := io.ReadAll(io.LimitReader(file, maxSize+1))
	if err == nil && len(data) > maxSize {
		return nil, fmt.Errorf("%s is larger than %d bytes", path, maxSize)
	}
	return data, err
}

// Parse reads a file on top of the default. A key that is not known is an
// error: a misspelled key that is silently ignored costs its author a night.
func Parse(data []byte) (*File, error) {
	doc := document{APIVersion: apiVersion, Kind: kind, Config: Default()}
	if err := decode(data, &doc); err != nil {
		var types *yaml.TypeError
		if !errors.As(err, &types) {
			return nil, err
		}
		// What could be read was, so that its problems can be told too.
		return nil, errors.Join(err, doc.validate())
	}
	if err := doc.validate(); err != nil {
		return nil, err
	}
	return &File{base: doc.Config, sections: doc.Nodes, text: data}, nil
}

// decode reads the only document of data.
func decode(data []byte, doc *document) error {
	decoder := yaml.NewDecoder(bytes.NewReader(data))
	decoder.KnownFields(true)
	err := decoder.Decode(doc)
	if errors.Is(err, io.EOF) {
		return nil // nothing but comments, if that
	}
	var types *yaml.TypeError
	if err != nil && !errors.As(err, &types) {
		return err
	}
	if next := decoder.Decode(&yaml.Node{}); !errors.Is(next, io.EOF) {
		err = errors.Join(err, errors.New("there is more than one document: only one would be read"))
	}
	var raw struct {
		Nodes []yaml.Node `yaml:"nodes"`
	}
	_ = yaml.Unmarshal(data, &raw) // what is wrong is known already
	for i := range min(len(doc.Nodes), len(raw.Nodes)) {
		doc.Nodes[i].written = raw.Nodes[i]
	}
	return err
}

func (d *document) validate() error {
	var errs []error
	if d.APIVersion != apiVersion {
		errs = append(errs, fmt.Errorf("apiVersion is %q, want %q", d.APIVersion, apiVersion))
	}
	if d.Kind != kind {
		errs = append(errs, fmt.Errorf("kind is %q, want %q", d.Kind, kind))
	}
	base := d.Config
	if err := base.validate(); err != nil {
		errs = append(errs, err)
		base = Default() // so that a section is not blamed for it
	}
	for i := range d.Nodes {
		if err := d.Nodes[i].validate(base); err != nil {
			lines := strings.ReplaceAll(err.Error(), "\n", fmt.Sprintf("\nnodes[%d]: ", i))
			errs = append(errs, fmt.Errorf("nodes[%d]: %s", i, lines))
		}
	}
	return errors.Join(errs...)
}

func (s *section) validate(base Config) error {
	var errs []error
	if s.Section == "" && len(s.Names) == 0 && s.Selector == "" {
		errs = append(errs, errors.New("it holds on no node: give it section, names or selector"))
	}
	var err error
	if s.fits, err = labels.Parse(s.Selector); err != nil {
		errs = append(errs, fmt.Errorf("selector: %w", err))
	}
	return errors.Join(append(errs, s.over(base).validate())...)
}

// over returns base with what the section says instead.
func (s *section) over(base Config) Config {
	whole := section{Config: base}
	_ = s.written.Decode(&whole) // Parse has told what is wrong
	return whole.Config
}

func (s *section) holds(node Node) bool {
	named := s.Section != "" && node.Labels[SectionLabel] == s.Section
	selected := s.Selector != "" && s.fits.Matches(labels.Set(node.Labels))
	return named || selected || slices.Contains(s.Names, node.Name)
}

// Lacks returns the section that a node's label asks for if there is none of
// that name.
func (f *File) Lacks(node Node) string {
	name := node.Labels[SectionLabel]
	if slices.ContainsFunc(f.sections, func(s section) bool { return s.Section == name }) {
		return ""
	}
	return name
}

// ByLabels says whether what holds on a node may depend on its labels.
func (f *File) ByLabels() bool {
	return slices.ContainsFunc(f.sections, func(s section) bool { return s.Section != "" || s.Selector != "" })
}

// For returns what holds on a node. Of two sections the later one wins.
func (f *File) For(node Node) (Config, error) {
	cfg := f.base
	for _, s := range f.sections {
		if s.holds(node) {
			cfg = s.over(cfg)
		}
	}
	if err := cfg.validate(); err != nil {
		return Config{}, fmt.Errorf("joining the sections of the config that hold on this node: %w", err)
	}
	return cfg, nil
}
