package cluster

import (
	"fmt"
	"strings"
	"testing"
)

func TestSliceNames(t *testing.T) {
	long := strings.Repeat("n", 63) + "." + strings.Repeat("o", 63) + "." + strings.Repeat("p", 63) + "." + strings.Repeat("q", 61)
	seen := map[string]bool{}
	for _, driver := range []string{testDriver, strings.Repeat("d", 63)} {
		for _, node := range []string{"node", long, long[:252] + "r"} {
			for _, index := range []int{0, 1, 99999} {
				name := sliceName(driver, node, index)
				if len(name) > nameLimit || !isOwnSlice(name) || seen[name] || !strings.HasPrefix(name, fmt.Sprintf("%05d-", index)) {
					t.Errorf("name %q", name)
				}
				seen[name] = true
			}
		}
	}
	if got, want := sliceName(testDriver, "node", 3), "00003-gpu.nvidia.com-node-gpucdi"; got != want {
		t.Errorf("name %q, want %q", got, want)
	}
}
