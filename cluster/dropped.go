package cluster

import (
	"encoding/json"
	"slices"
)

// taintsField is the path of the taints of devices, without the feature gate DRADeviceTaints.
const taintsField = "devices[].taints"

// DropsTaints reports whether the API server does not store the taints of devices: a scheduler then allocates the
// devices despite their taints.
func (s PoolStatus) DropsTaints() bool { return slices.Contains(s.Dropped, taintsField) }

// compareFields returns the paths, such as "devices[].taints", of the fields of a sent spec, and whether the stored spec
// lacks them. Both are in the form of specForm. The API server drops fields whose feature gate is disabled.
func compareFields(sent, stored string) (dropped map[string]bool) {
	dropped = map[string]bool{}
	var a, b any
	if json.Unmarshal([]byte(sent), &a) != nil || json.Unmarshal([]byte(stored), &b) != nil {
		return dropped // cannot happen: both are the output of json.Marshal
	}
	collectDropped(a, b, "", dropped)
	return dropped
}

func collectDropped(sent, stored any, path string, dropped map[string]bool) {
	switch sent := sent.(type) {
	case map[string]any:
		other, _ := stored.(map[string]any)
		for key, value := range sent {
			field := key
			if path != "" {
				field = path + "." + key
			}
			kept, ok := other[key]
			dropped[field] = dropped[field] || !ok
			if ok {
				collectDropped(value, kept, field, dropped)
			}
		}
	case []any:
		other, _ := stored.([]any)
		if len(other) < len(sent) {
			dropped[path] = true
			return
		}
		for i, value := range sent {
			collectDropped(value, other[i], path+"[]", dropped)
		}
	}
}
