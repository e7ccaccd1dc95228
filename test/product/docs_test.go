package product_test

import (
	"os/exec"
	"path/filepath"
	"regexp"
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

// The command in docs/health.md prints the tables there. It takes minutes, so this test runs it for one row of each
// table. Package devicemanager checks that the document has all rows.
func TestHealthTable(t *testing.T) {
	const all, few = " -run Faults ", " -run 'Faults/^(a_transient_XID|an_XID_of_one_MIG_device|the_agent.s_socket_is_deleted)$' "
	commands, err := docs.Blocks(t.Context(), "docs/health.md", "Measured recovery times", "sh")
	if err != nil {
		t.Fatal(err)
	}
	for _, command := range commands {
		if !strings.Contains(command, all) {
			t.Fatalf("%q in docs/health.md lacks %q", command, all)
		}
		out := sh(t, strings.Replace(command, all, few, 1))
		for _, row := range []string{
			"| a transient XID | 7 of 8 | TIME | TIME |",
			"| an XID of one MIG device | 15 of 16 `mig-1g.5gb` | TIME | TIME |",
			"| an XID of a GPU shared by four | 4 of 8 | TIME | TIME |",
			"| the agent's socket is deleted | TIME |",
		} {
			measured := strings.ReplaceAll(regexp.QuoteMeta(row), "TIME", `[0-9.]+m?s`)
			if !regexp.MustCompile(measured).MatchString(out) {
				t.Errorf("%s prints no row %s:\n%s", command, row, out)
			}
		}
	}
}

// sh runs a command of a document in the root of the repository.
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
