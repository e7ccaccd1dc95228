package product_test

import (
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gpucdi/gpucdi/test/docs"
	"github.com/gpucdi/gpucdi/test/node/tools"
)

func TestReadmeBuilds(t *testing.T) {
	commands, err := docs.Blocks(t.Context(), "README.md", "Without Kubernetes", "sh")
	if err != nil {
		t.Fatal(err)
	}
	if out := sh(t, commands[0]+"\ngpucdi version"); !strings.Contains(out, "\ngpucdi ") {
		t.Errorf("after %s, gpucdi version prints %s", commands[0], out)
	}
}

// The table's test takes a minute and runs with the others; here it is only found.
func TestHealthTableIsPrinted(t *testing.T) {
	commands, err := docs.Blocks(t.Context(), "docs/health.md", "What happens when", "sh")
	if err != nil {
		t.Fatal(err)
	}
	for _, command := range commands {
		out := sh(t, strings.Replace(command, " -run ", " -list ", 1))
		if !strings.Contains(out, "TestFaults\n") {
			t.Errorf("%s runs\n%s", command, out)
		}
	}
}

// sh runs a command of a document in the checkout.
func sh(t *testing.T, command string) string {
	t.Helper()
	module, err := tools.ModuleDir(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), "sh", "-ec", command)
	cmd.Dir = filepath.Dir(module)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v\n%s", command, err, out)
	}
	return string(out)
}
