package agent

import (
	"strings"
	"testing"
)

// The error of a module that waits for another one names both.
func TestHangingModule(t *testing.T) {
	m := modules{stuck: make(chan error, 1), hanging: "nvidia"}
	err := m.run(t.Context(), "nvidia_uvm")
	if err == nil || !strings.HasPrefix(err.Error(), "loading the kernel module nvidia_uvm: modprobe hangs in the kernel while it loads nvidia;") {
		t.Errorf("error %v", err)
	}
}
