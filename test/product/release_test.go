package product_test

import (
	"debug/elf"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gpucdi/gpucdi/test/node/tools"
)

// The same commit gives the same bytes, wherever it is checked out; and they are
// what their names say.
func TestRelease(t *testing.T) {
	module, err := tools.ModuleDir(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	sums := make([]string, 2)
	var dist string
	for i, dir := range []string{"one", "another/place"} {
		checkout := filepath.Join(t.TempDir(), dir)
		commit(t, filepath.Dir(module), checkout)
		dist = filepath.Join(checkout, "dist")
		in(t, checkout, "make", "release")
		sums[i] = textOf(t, filepath.Join(dist, "SHA256SUMS"))
	}
	if sums[0] != sums[1] || strings.Count(sums[0], "\n") != 3 {
		t.Errorf("released was\n%s\nand then\n%s", sums[0], sums[1])
	}
	in(t, dist, "sha256sum", "--check", "--quiet", "SHA256SUMS")
	for arch, machine := range map[string]elf.Machine{"amd64": elf.EM_X86_64, "arm64": elf.EM_AARCH64} {
		t.Run(arch, func(t *testing.T) {
			dir := filepath.Join(dist, "gpucdi_v9.9.9_linux_"+arch)
			in(t, dist, "tar", "--extract", "--file", dir+".tar.gz")
			for _, program := range []string{"gpucdi", "gpucdi-nvml", "gpucdi-hook"} {
				checkProgram(t, filepath.Join(dir, program), machine)
			}
		})
	}
	if out := in(t, filepath.Join(dist, "gpucdi_v9.9.9_linux_amd64"), "./gpucdi", "version"); out != "gpucdi v9.9.9\n" {
		t.Errorf("the program says that it is %s", out)
	}
}

// checkProgram looks at a program, and at what its list of components holds.
func checkProgram(t *testing.T, program string, machine elf.Machine) {
	t.Helper()
	image, err := elf.Open(program)
	if err != nil {
		t.Fatal(err)
	}
	defer image.Close()
	if image.Machine != machine {
		t.Errorf("%s is for %s", program, image.Machine)
	}
	var bom struct {
		Metadata   struct{ Component struct{ Version string } }
		Components []struct{ Name, Version string }
	}
	if err := json.Unmarshal([]byte(textOf(t, program+".cdx.json")), &bom); err != nil {
		t.Fatal(err)
	}
	if bom.Metadata.Component.Version != "v9.9.9" || len(bom.Components) == 0 {
		t.Errorf("the list of components of %s has %+v", program, bom)
	}
}

// commit makes a repository of the source tree from, with one tagged commit that is
// the same each time.
func commit(t *testing.T, from, to string) {
	t.Helper()
	if err := os.MkdirAll(to, 0o755); err != nil {
		t.Fatal(err)
	}
	in(t, from, "sh", "-ec", `tar --exclude=./.git --exclude=./bin --exclude=./dist --create . | tar --extract --directory "$0"`, to)
	for _, args := range [][]string{
		{"init", "--quiet"}, {"add", "--all"}, {"commit", "--quiet", "--message", "release"}, {"tag", "v9.9.9"},
	} {
		in(t, to, "git", args...)
	}
}

func in(t *testing.T, dir, name string, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), name, args...)
	cmd.Dir = dir
	cmd.Env = os.Environ()
	for _, role := range []string{"AUTHOR", "COMMITTER"} {
		cmd.Env = append(cmd.Env, "GIT_"+role+"_NAME=release", "GIT_"+role+"_EMAIL=release@example.com",
			"GIT_"+role+"_DATE=2026-01-01T00:00:00Z")
	}
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, out)
	}
	return string(out)
}

func textOf(t *testing.T, name string) string {
	t.Helper()
	data, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}
