package vcuda

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"

	"github.com/gpucdi/gpucdi/allocator"
)

// wholeCores is the number of cores of a whole GPU. A core is one percent of its compute time.
const wholeCores = 100

// maxGPUs is the maximum number of devices in a ResourceClaim.
const maxGPUs = 32

// request is a container's request for a part of a GPU, or for whole GPUs. Name encodes all of it.
type request struct {
	Cores          int    // compute time in percent of a GPU: less than 100 for a part, or a multiple of 100
	MemoryMiB      uint64 // of a part of a GPU; 0 for whole GPUs
	ComputeCeiling int    // of a part of a GPU, in percent of the GPU; 0: none

	// Minimum levels; empty: any.
	Isolation allocator.Isolation
}

// namePattern is the format of the names of templates.
var namePattern = regexp.MustCompile(`^vcuda-c([1-9]\d{0,3})(?:-m([1-9]\d{0,8}))?(?:-l([1-9]\d{0,2}))?` +
	`(?:-memory-(` + anyOf(allocator.MemoryIsolationLevels) + `))?(?:-compute-(` + anyOf(allocator.ComputeIsolationLevels) + `))?$`)

func anyOf[L ~string](levels []L) string {
	var names []string
	for _, l := range levels {
		names = append(names, string(l))
	}
	return strings.Join(names, "|")
}

// parseName returns the request of a template's name; false if no valid request has that name.
func parseName(name string) (r request, ok bool) {
	match := namePattern.FindStringSubmatch(name)
	if match == nil {
		return request{}, false
	}
	r.Cores, _ = strconv.Atoi(match[1])
	r.MemoryMiB, _ = strconv.ParseUint(match[2], 10, 64) // 0 if it is missing
	r.ComputeCeiling, _ = strconv.Atoi(match[3])
	r.Isolation = allocator.Isolation{Memory: allocator.MemoryIsolation(match[4]), Compute: allocator.ComputeIsolation(match[5])}
	if r.Cores >= wholeCores {
		return r, r.Cores%wholeCores == 0 && r.Cores <= maxGPUs*wholeCores && r.MemoryMiB == 0 && r.ComputeCeiling == 0
	}
	return r, r.MemoryMiB > 0 && (r.ComputeCeiling == 0 || r.ComputeCeiling >= r.Cores && r.ComputeCeiling <= wholeCores)
}

// Name returns the name of the request's template.
func (r request) Name() string {
	name := fmt.Sprintf("vcuda-c%d", r.Cores)
	if r.MemoryMiB > 0 {
		name += fmt.Sprintf("-m%d", r.MemoryMiB)
	}
	if r.ComputeCeiling > 0 {
		name += fmt.Sprintf("-l%d", r.ComputeCeiling)
	}
	if r.Isolation.Memory != "" {
		name += "-memory-" + string(r.Isolation.Memory)
	}
	if r.Isolation.Compute != "" {
		name += "-compute-" + string(r.Isolation.Compute)
	}
	return name
}
