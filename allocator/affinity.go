package allocator

import "github.com/gpucdi/gpucdi/gpu"

// affinity holds how well each two devices of a resource work together, by
// their positions; higher is better.
type affinity [][]int

func newAffinity(gpus []gpu.GPU) affinity { return make(affinity, len(gpus)) }
