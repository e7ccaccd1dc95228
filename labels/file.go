package labels

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// File encodes labels as a feature file of Node Feature Discovery.
func File(labels map[string]string) []byte {
	var text strings.Builder
	for _, name := range slices.Sorted(maps.Keys(labels)) {
		fmt.Fprintf(&text, "%s=%s\n", name, labels[name])
	}
	return []byte(text.String())
}
