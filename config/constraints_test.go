package config

import (
	"reflect"
	"slices"
	"strings"

	"github.com/gpucdi/gpucdi/allocator"
	"github.com/gpucdi/gpucdi/gpu/health"
)

// Patterns of the chart's schema, in the syntax that Go and JavaScript share.
const (
	duration = `^\+?(0|(([0-9]+(\.[0-9]*)?|\.[0-9]+)(ns|us|µs|μs|ms|s|m|h))+)$`

	// atLeastSecond matches durations with one term of at least a second, and all durations with several terms.
	atLeastSecond = `[a-zµμ][0-9.]|^\+?(0*[1-9][0-9]*(\.[0-9]*)?s|[0-9.]*[1-9][0-9.]*[mh]|0*[1-9][0-9]{3,}(\.[0-9]*)?ms|` +
		`0*[1-9][0-9]{6,}(\.[0-9]*)?[uµμ]s|0*[1-9][0-9]{9,}(\.[0-9]*)?ns)$`

	// hook is stricter than the agent: the chart inserts the path into a command.
	hook = `^$|^/[A-Za-z0-9._/@+=-]*$`

	glob       = `^([^\\\[]|\\.|\[\^?(([^\\\]-]|\\.)(-([^\\\]-]|\\.))?)+\])*$`
	memory     = `^$|^\s*(<=|>=|<|>|=)\s*` + number + `[MGT]i\s*(,\s*(<=|>=|<|>|=)\s*` + number + `[MGT]i\s*)*$`
	size       = `^(0?|` + number + `[MGT]i)$`
	number     = `\+?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?`
	capability = `^$|^\s*(<=|>=|<|>|=)\s*\+?[0-9]+(\.\+?[0-9]+)?\s*(,\s*(<=|>=|<|>|=)\s*\+?[0-9]+(\.\+?[0-9]+)?\s*)*$`

	// resource matches the names of extended resources, standardResource the names that a rule without select accepts.
	resource         = `^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*/[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$`
	reservedResource = `kubernetes\.io/|^requests\.`
	standardResource = `^nvidia\.com/(gpu|mig-[-A-Za-z0-9_.]{0,58}[A-Za-z0-9])$`

	labelKey      = `([-A-Za-z0-9.]+/)?[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?`
	labelValue    = `([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?`
	labelValues   = `\(\s*` + labelValue + `\s*(,\s*` + labelValue + `\s*)*\)`
	requirement   = `\s*(!\s*` + labelKey + `|` + labelKey + `(\s*(==?|!=)\s*` + labelValue + `|\s+(in|notin)\s*` + labelValues + `|\s*[<>]\s*-?[0-9]+)?)\s*`
	labelSelector = `^\s*$|^` + requirement + `(,` + requirement + `)*$`
)

// constraints returns the constraints of Config.validate and the rules, by type or field. They may be looser than the
// agent, which validates the config itself. TestConfigSchema in test/chart checks that they are not stricter, with three
// exceptions: hook, the types of scalars, because the agent accepts 5 as a string, and an empty string in select, which
// the agent treats as a missing key.
func constraints(s source) map[string]schema {
	second := schema{"allOf": []schema{{"pattern": atLeastSecond}}}
	return map[string]schema{
		"config.CDI.PassBy":                    {"minItems": 1},
		"config.CDI.Hook":                      {"pattern": hook},
		"config.Health.ProbeInterval":          second,
		"config.Health.CallTimeout":            second,
		"config.section":                       {"anyOf": []schema{set("section", ""), set("names", []any{}), set("selector", "")}},
		"config.section.Selector":              {"pattern": labelSelector},
		"allocator.Selector.Product":           {"pattern": glob},
		"allocator.Selector.MIG":               {"pattern": glob},
		"allocator.Selector.UUID":              {"minItems": 1, "items": schema{"type": "string", "pattern": glob}},
		"allocator.Selector.PCI":               {"minItems": 1, "items": schema{"type": "string", "pattern": glob}},
		"allocator.Selector.Index":             {"minItems": 1, "items": schema{"type": "integer", "minimum": 0}},
		"allocator.Selector.Memory":            {"pattern": memory},
		"allocator.Rule.Replicas":              {"minimum": 0, "maximum": allocator.MaxDevices, "not": schema{"const": 1}},
		"allocator.Rule.Mode":                  {"enum": append([]allocator.Mode{""}, allocator.Modes()...)},
		"allocator.Rule.Features":              {"items": schema{"enum": s.constants("cdi.Feature")}},
		"config.Remediation.Faults":            {"items": schema{"anyOf": []schema{{"enum": faultSelectors(s)}, {"pattern": `^xid_(0|[1-9][0-9]*)$`}}}},
		"allocator.Shares.MemoryScaling":       {"exclusiveMinimum": 0, "maximum": 1},
		"allocator.Shares.Reserve":             {"type": []string{"string", "integer"}, "pattern": size, "maximum": 0, "minimum": 0},
		"allocator.Shares.MaxCeiling":          {"minimum": 1, "maximum": 100},
		"allocator.Monitoring.Resource":        {"anyOf": extendedResource()["anyOf"], "not": schema{"pattern": standardResource}},
		"allocator.Monitoring.Count":           {"minimum": 1, "maximum": allocator.MaxMonitors},
		"allocator.Rule":                       {"allOf": ruleConstraints()},
		"config.document":                      {"allOf": modeConstraints()},
		"allocator.Selector.ComputeCapability": {"pattern": capability},
	}
}

// ruleConstraints returns the dependencies between the keys of a rule.
func ruleConstraints() []schema {
	// At least one key that has an effect on its own is required. New keys are assumed to have such an effect.
	var effects []schema
	for field := range reflect.TypeFor[allocator.Rule]().Fields() {
		key, zero := field.Tag.Get("yaml"), reflect.Zero(field.Type).Interface()
		if field.Type.Kind() == reflect.Slice {
			zero = []any{}
		}
		if !slices.Contains([]string{"select", "name", "rename", "failRequestsGreaterThanOne", "limits", "level"}, key) {
			effects = append(effects, set(key, zero))
		}
	}
	shared := schema{"pattern": `^$|` + strings.ReplaceAll(allocator.SharedSuffix, ".", `\.`) + "$"}
	selects := schema{"required": []string{"select"}, "properties": schema{"select": schema{"minProperties": 1}}}
	return []schema{
		{
			"if": selects,
			"then": schema{
				"anyOf":      append(effects, set("name", "")),
				"properties": schema{"name": extendedResource(), "rename": schema{"const": ""}},
			},
			"else": schema{
				"required":   []string{"name"},
				"anyOf":      effects,
				"properties": schema{"name": schema{"pattern": standardResource}, "rename": shared},
			},
		},
		{"if": has("name", allocator.GPUResource), "then": schema{"properties": schema{
			"rename": schema{"enum": []string{"", allocator.GPUResource + allocator.SharedSuffix}},
		}}},
		{"if": schema{"allOf": []schema{selects, set("exclude", false)}}, "then": unset("name")},
		{"if": set("exclude", false), "then": unset("mode", "replicas", "share", "features", "rename", "failRequestsGreaterThanOne", "limits", "level")},
		{"if": set("failRequestsGreaterThanOne", false), "then": set("replicas", 0)},
		{"if": set("rename", ""), "then": set("replicas", 0)},
		{"if": set("limits", ""), "then": set("replicas", 0)},
		{"if": has("limits", allocator.LimitMemoryAndCompute), "then": schema{"allOf": []schema{
			set("failRequestsGreaterThanOne", false), {"properties": schema{"replicas": schema{"maximum": 100}}},
		}}},
		{"if": set("level", ""), "then": schema{"anyOf": []schema{set("limits", ""), has("share", allocator.ShareMemory)}}},
		{"if": has("mode", allocator.ModeDRA), "then": draRule()},
		{"if": set("share", ""), "then": schema{"allOf": []schema{
			unset("rename", "failRequestsGreaterThanOne", "limits"), {"not": has("mode", allocator.ModeDevicePlugin)},
		}}},
		{"if": has("share", allocator.ShareMemory), "then": unset("replicas")},
		{"if": has("share", allocator.ShareReplicas), "then": set("replicas", 0)},
	}
}

// modeConstraints returns the constraints on the rules without mode, to which allocation.mode applies. Rules in
// sections of nodes are not constrained: the mode may be that of the base config.
func modeConstraints() []schema {
	rules := func(constraint schema) schema {
		return schema{"properties": schema{"resources": schema{"items": schema{"if": unset("mode"), "then": constraint}}}}
	}
	return []schema{{
		"if":   schema{"required": []string{"allocation"}, "properties": schema{"allocation": has("mode", allocator.ModeDRA)}},
		"then": rules(draRule()),
		"else": rules(unset("share")),
	}}
}

// draRule requires that a rule is valid in mode dra.
func draRule() schema {
	return schema{"allOf": []schema{unset("features"), {"if": unset("share"), "then": unset("replicas", "rename", "limits")}}}
}

// faultSelectors returns the fault codes and XID classes that are valid selectors.
func faultSelectors(s source) (names []string) {
	for _, name := range append(s.constants("health.Class"), s.constants("gpu.FaultCode")...) {
		if health.Selector(name).Validate() == nil {
			names = append(names, name)
		}
	}
	return names
}

// extendedResource requires a valid name or none.
func extendedResource() schema {
	return schema{"anyOf": []schema{{"const": ""}, {"pattern": resource, "not": schema{"pattern": reservedResource}}}}
}

// unset requires that keys are missing or have their zero values.
func unset(keys ...string) schema {
	properties := schema{}
	for _, key := range keys {
		properties[key] = schema{"enum": []any{"", 0, false, []any{}}}
	}
	return schema{"properties": properties}
}

// has requires that a key has a value.
func has[T ~string](key string, value T) schema {
	return schema{"required": []string{key}, "properties": schema{key: schema{"const": value}}}
}

// set requires that a key has a value other than its zero value.
func set(key string, zero any) schema {
	return schema{"required": []string{key}, "properties": schema{key: schema{"not": schema{"const": zero}}}}
}
