package cluster

import (
	"encoding/json"
	"maps"
	"slices"
)

// droppedFields returns the paths, such as "devices[].taints", of the fields that a sent spec has and the stored one
// lacks, sorted. Both are in the form of specForm. The API server drops fields whose feature gate is disabled.
func droppedFields(sent, stored string) []string {
	var a, b any
	if json.Unmarshal([]byte(sent), &a) != nil || json.Unmarshal([]byte(stored), &b) != nil {
		return nil // cannot happen: both are the output of json.Marshal
	}
	paths := map[string]bool{}
	collectDropped(a, b, "", paths)
	return slices.Sorted(maps.Keys(paths))
}

func collectDropped(sent, stored any, path string, paths map[string]bool) {
	switch sent := sent.(type) {
	case map[string]any:
		other, _ := stored.(map[string]any)
		for key, value := range sent {
			field := key
			if path != "" {
				field = path + "." + key
			}
			if kept, ok := other[key]; ok {
				collectDropped(value, kept, field, paths)
			} else {
				paths[field] = true
			}
		}
	case []any:
		other, _ := stored.([]any)
		if len(other) < len(sent) {
			paths[path] = true
			return
		}
		for i, value := range sent {
			collectDropped(value, other[i], path+"[]", paths)
		}
	}
}
