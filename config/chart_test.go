package config

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"
)

// The last key of the chart's schema, $defs, validates the chart value config. It is generated from the types of this
// package and the constraints in constraints_test.go.
func TestReferenceChartSchema(t *testing.T) {
	const path, key = "../deploy/gpucdi/values.schema.json", "\n  \"$defs\": "
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	s := readSource(t)
	g := schemaWriter{source: s, constraints: constraints(s), unused: constraints(s), defs: map[string]schema{}}
	g.defs["config"] = g.object(reflect.TypeFor[document](), "apiVersion", "kind") // the chart sets these keys
	// The schema accepts the keys of NVIDIA's config, because templates/nvidia.yaml rejects them with an error that names
	// the replacement.
	for _, key := range []string{"default", "fallbackStrategies", "flags", "imex", "map", "name", "sharing", "version"} {
		g.defs["config"]["properties"].(schema)[key] = schema{"$ref": "#/definitions/nvidia"}
	}
	for name := range g.unused {
		t.Errorf("constraint on %s, which does not exist", name)
	}
	head, current, found := strings.Cut(string(text), key)
	want := g.format(t) + "\n}\n"
	switch {
	case !found:
		t.Fatalf("%s lacks $defs", path)
	case *update:
		if err := os.WriteFile(path, []byte(head+key+want), 0o600); err != nil {
			t.Fatal(err)
		}
	case current != want:
		t.Errorf("%s is stale; run make reference", path)
	}
}

// schema is a JSON schema.
type schema map[string]any

// schemaWriter collects the schemas of types.
type schemaWriter struct {
	source
	constraints map[string]schema // by type or field
	unused      map[string]schema // constraints that were not applied yet
	defs        map[string]schema // of structs, by name
}

// of returns the schema of a type.
func (g *schemaWriter) of(t reflect.Type) schema {
	s := schema{}
	switch {
	case t == reflect.TypeFor[time.Duration]():
		s = schema{"type": "string", "pattern": duration}
	case g.values[t.String()] != nil:
		s["enum"] = g.constants(t.String())
	case t.Kind() == reflect.Struct:
		if g.defs[t.String()] == nil {
			g.defs[t.String()] = g.object(t)
		}
		return schema{"$ref": "#/$defs/" + t.String()}
	case t.Kind() == reflect.Slice:
		s = schema{"type": "array", "items": g.of(t.Elem())}
	case t.Kind() == reflect.Bool:
		s["type"] = "boolean"
	case t.Kind() == reflect.String:
		s["type"] = "string"
	case t.Kind() == reflect.Int:
		s["type"] = "integer"
	case t.Kind() == reflect.Float64:
		s["type"] = "number"
	default:
		panic(fmt.Sprintf("no schema for %s", t))
	}
	g.constrain(s, t.String())
	return s
}

// object returns the schema of a struct without the given keys.
func (g *schemaWriter) object(t reflect.Type, without ...string) schema {
	properties := schema{}
	for field := range t.Fields() {
		key, options, _ := strings.Cut(field.Tag.Get("yaml"), ",")
		switch {
		case options == "inline":
			maps.Copy(properties, g.object(field.Type)["properties"].(schema))
		case key != "" && !slices.Contains(without, key):
			value := g.of(field.Type)
			g.constrain(value, t.String()+"."+field.Name)
			properties[key] = value
		}
	}
	s := schema{"type": "object", "additionalProperties": false, "properties": properties}
	g.constrain(s, t.String())
	return s
}

// constrain adds the constraints on a type, or a field of a struct.
func (g *schemaWriter) constrain(s schema, name string) {
	maps.Copy(s, g.constraints[name])
	delete(g.unused, name)
}

// constants returns the values of a type.
func (s source) constants(name string) (values []string) {
	for _, value := range s.values[name] {
		constant, _, _ := strings.Cut(value, ": ")
		values = append(values, constant)
	}
	return values
}

// format formats the schemas with one property per line.
func (g *schemaWriter) format(t *testing.T) string {
	t.Helper()
	var text strings.Builder
	text.WriteString("{")
	for i, name := range slices.Sorted(maps.Keys(g.defs)) {
		if i > 0 {
			text.WriteString(",")
		}
		fmt.Fprintf(&text, "\n    %q: {", name)
		for j, key := range slices.Sorted(maps.Keys(g.defs[name])) {
			if j > 0 {
				text.WriteString(",")
			}
			fmt.Fprintf(&text, "\n      %q: ", key)
			value, ok := g.defs[name][key].(schema)
			if !ok {
				text.WriteString(formatJSON(t, g.defs[name][key]))
				continue
			}
			text.WriteString("{")
			for k, property := range slices.Sorted(maps.Keys(value)) {
				if k > 0 {
					text.WriteString(",")
				}
				fmt.Fprintf(&text, "\n        %q: %s", property, formatJSON(t, value[property]))
			}
			text.WriteString("\n      }")
		}
		text.WriteString("\n    }")
	}
	text.WriteString("\n  }")
	return text.String()
}

func formatJSON(t *testing.T, value any) string {
	t.Helper()
	var text bytes.Buffer
	encoder := json.NewEncoder(&text)
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(value); err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(text.String())
}
