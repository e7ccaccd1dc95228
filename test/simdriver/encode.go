package simdriver

import (
	"fmt"
	"reflect"
	"strings"
	"time"
)

// encode encodes a state for src/nvml/parse.c: one record per line, its kind
// first, then key=value fields, separated by tabs. library is the version of
// libnvidia-ml, which differs from the kernel module's after an upgrade.
func encode(s *State, library string) string {
	var b strings.Builder
	module := s.Version
	if s.Unloaded {
		module = ""
	}
	fmt.Fprintf(&b, "driver\tlibrary=%s\tmodule=%s\tcuda=%d\tconfidential=%v\tprotected_pcie=%v\n",
		library, module, s.CUDA, plain(reflect.ValueOf(s.Confidential)), plain(reflect.ValueOf(s.ProtectedPCIe)))
	products := map[string]bool{}
	for _, g := range s.GPUs {
		record(&b, "gpu", g)
		for _, l := range g.Links {
			record(&b, "link\tgpu="+g.UUID, l)
		}
		for _, m := range g.MIG {
			record(&b, "mig\tgpu="+g.UUID, m)
		}
		if !products[g.Name] {
			products[g.Name] = true
			for _, p := range migProfiles[g.Name] {
				record(&b, "profile\tproduct="+g.Name, p)
			}
		}
	}
	for _, e := range s.Events {
		record(&b, "event", e)
	}
	for _, p := range s.Processes {
		record(&b, "process", p)
	}
	for _, f := range s.Faults {
		record(&b, "fault", f)
	}
	return b.String()
}

// record adds a line with a kind and the fields of a struct.
func record(b *strings.Builder, kind string, v any) {
	b.WriteString(kind)
	fields(b, reflect.ValueOf(v))
	b.WriteByte('\n')
}

// fields adds the tagged fields of a struct and of the structs in it.
func fields(b *strings.Builder, v reflect.Value) {
	for i := range v.NumField() {
		field, key := v.Field(i), v.Type().Field(i).Tag.Get("nvsim")
		switch {
		case field.Kind() == reflect.Struct:
			fields(b, field)
		case key != "":
			fmt.Fprintf(b, "\t%s=%v", key, plain(field))
		}
	}
}

// plain returns a value as src/nvml/parse.c reads it: booleans are 0 or 1, durations
// milliseconds.
func plain(v reflect.Value) any {
	switch x := v.Interface().(type) {
	case bool:
		if x {
			return 1
		}
		return 0
	case time.Duration:
		return x.Milliseconds()
	default:
		return x
	}
}
