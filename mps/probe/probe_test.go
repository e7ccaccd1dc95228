package probe

import (
	"strings"
	"testing"
)

// The error names the first function that the library lacks.
func TestLibraryWithoutCUDA(t *testing.T) {
	if err := Run("libc.so.6"); err == nil || !strings.Contains(err.Error(), "cuInit") {
		t.Errorf("error %v", err)
	}
}
