package labels

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// File writes labels as Node Feature Discovery reads them from a file.
func File(labels map[string]string) []byte {
	var text strings.Builder
	for _, name := range slices.Sorted(maps.Keys(labels)) {
		fmt.Fprintf(&text, "%s=%s\n", name, labels[name])
	}
	return []byte(text.String())
}
