package cli

import (
	"strconv"

	"github.com/gpucdi/gpucdi/gpu"
)

// NUMA is the number of a NUMA node as tables show it.
func NUMA(node int) string {
	if node == gpu.NUMAUnknown {
		return "-"
	}
	return strconv.Itoa(node)
}
