package config

import (
	"cmp"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"
)

// nvidiaKeys are hints for top-level keys of the config of NVIDIA's device plugin.
var nvidiaKeys = map[string]string{
	"version": "use apiVersion: " + apiVersion,
	"flags":   "use mig.strategy for flags.migStrategy, and docs/moving.md for other flags",
	"sharing": "use resources for sharing.timeSlicing.resources, with limits: memory+compute for sharing.mps.resources",
}

// maxValueShown bounds how many bytes of a value an error quotes.
const maxValueShown = 64

// schemaErrors returns unknown keys, duplicate keys, values of the wrong type and empty list items in the file, nil if
// there are none. The errors of the YAML decoder name Go types instead of keys, and it drops list items that are empty
// or have the wrong type. dropped reports whether there are such mappings, since those after them have other indices.
func schemaErrors(data []byte) (dropped bool, err error) {
	var root yaml.Node
	if err := yaml.Unmarshal(data, &root); err != nil || len(root.Content) == 0 {
		return false, err
	}
	var c schemaCheck
	c.value("", root.Content[0], reflect.TypeFor[document]())
	return c.dropped, errors.Join(c.errs...)
}

// schemaCheck compares YAML nodes with the Go types that they are decoded into.
type schemaCheck struct {
	errs    []error
	dropped bool
}

// value reports whether the node has the right type. Its items and the values of its keys may have others.
func (c *schemaCheck) value(path string, n *yaml.Node, want reflect.Type) bool {
	n = resolveAlias(n)
	switch {
	case isNull(n): // stands for the default
	case want.Kind() == reflect.Struct && n.Kind == yaml.MappingNode:
		c.mapping(path, n, want)
	case want.Kind() == reflect.Slice && n.Kind == yaml.SequenceNode:
		for i, item := range n.Content {
			c.item(fmt.Sprintf("%s[%d]", path, i), item, want.Elem())
		}
	case n.Decode(reflect.New(want).Interface()) != nil:
		c.wrongType(cmp.Or(path, "document"), n, want)
		return false
	}
	return true
}

func (c *schemaCheck) item(path string, n *yaml.Node, want reflect.Type) {
	n = resolveAlias(n)
	if isNull(n) {
		c.wrongType(path, n, want)
	} else if c.value(path, n, want) {
		return
	}
	c.dropped = c.dropped || want.Kind() == reflect.Struct
}

func (c *schemaCheck) wrongType(path string, n *yaml.Node, want reflect.Type) {
	c.errs = append(c.errs, fmt.Errorf("%s: want %s, got %s (line %d)", path, describeType(want), describeValue(n), n.Line))
}

func isNull(n *yaml.Node) bool { return n.ShortTag() == "!!null" }

func (c *schemaCheck) mapping(path string, n *yaml.Node, want reflect.Type) {
	if c.duplicates(path, n) {
		return // the decoder skips the values, too, so its limit on the expansion of aliases does not cover them
	}
	keys := keysOf(want)
	for i := 0; i+1 < len(n.Content); i += 2 {
		key, value := resolveAlias(n.Content[i]), n.Content[i+1]
		of, found := keys[key.Value]
		switch {
		case key.ShortTag() == "!!merge":
			c.merge(path, value, want)
		case found:
			c.value(join(path, key.Value), value, of)
		default:
			err := fmt.Errorf("%s: unknown key (line %d)", join(path, key.Value), key.Line)
			if hint := nvidiaKeys[key.Value]; hint != "" && path == "" {
				err = fmt.Errorf("%w; %s", err, hint)
			}
			c.errs = append(c.errs, err)
		}
	}
}

// duplicates adds an error for each duplicate key of a mapping, and reports whether there are any.
func (c *schemaCheck) duplicates(path string, n *yaml.Node) bool {
	found, seen := false, map[string]bool{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		key := resolveAlias(n.Content[i])
		if seen[key.Value] {
			found = true
			c.errs = append(c.errs, fmt.Errorf("%s: duplicate key (line %d)", join(path, key.Value), key.Line))
		}
		seen[key.Value] = true
	}
	return found
}

func join(path, key string) string {
	if path == "" {
		return key
	}
	return path + "." + key
}

// merge checks the value of a merge key (<<): a mapping or a list of mappings.
func (c *schemaCheck) merge(path string, n *yaml.Node, want reflect.Type) {
	n = resolveAlias(n)
	if n.Kind != yaml.SequenceNode {
		c.value(path, n, want)
		return
	}
	for _, item := range n.Content {
		c.value(path, item, want)
	}
}

// keysOf returns the type of each key of a struct, including keys of inlined structs.
func keysOf(of reflect.Type) map[string]reflect.Type {
	keys := map[string]reflect.Type{}
	for i := range of.NumField() {
		field := of.Field(i)
		name, options, _ := strings.Cut(field.Tag.Get("yaml"), ",")
		switch {
		case options == "inline":
			for name, of := range keysOf(field.Type) {
				keys[name] = of
			}
		case name != "":
			keys[name] = field.Type
		}
	}
	return keys
}

func resolveAlias(n *yaml.Node) *yaml.Node {
	if n.Kind == yaml.AliasNode {
		return n.Alias
	}
	return n
}

func describeType(t reflect.Type) string {
	switch {
	case t == reflect.TypeFor[time.Duration]():
		return "a duration such as 5s"
	case t.Kind() == reflect.Struct:
		return "a mapping"
	case t.Kind() == reflect.Slice:
		return "a list"
	case t.Kind() == reflect.Bool:
		return "true or false"
	case t.Kind() == reflect.String:
		return "a string"
	case t.Kind() == reflect.Float64:
		return "a number"
	}
	return "an integer"
}

// describeValue quotes strings, to distinguish "5" from 5.
func describeValue(n *yaml.Node) string {
	switch n.Kind {
	case yaml.MappingNode:
		return "a mapping"
	case yaml.SequenceNode:
		return "a list"
	}
	if isNull(n) {
		return "nothing"
	}
	value, more := n.Value, ""
	if len(value) > maxValueShown {
		value, more = value[:maxValueShown], "…"
	}
	if n.ShortTag() == "!!str" {
		return fmt.Sprintf("%q%s", value, more)
	}
	return value + more
}
