package e2e

import (
	"encoding/base64"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
)

// The C programs of testdata that run in pods.
var (
	allocateProgram = newProgram("allocate")
	contextProgram  = newProgram("context")
)

// program is a C program of testdata. Its file in a pod is /tmp/name.
type program struct {
	name    string
	compile func() ([]byte, error) // once
}

func newProgram(name string) program {
	return program{name, sync.OnceValues(func() ([]byte, error) {
		dir, err := os.MkdirTemp("", name+"-")
		if err != nil {
			return nil, err
		}
		defer os.RemoveAll(dir)
		file := filepath.Join(dir, name)
		if out, err := exec.Command("cc", "-Wall", "-Wextra", "-Werror", "-s", "-o", file, "testdata/"+name+".c", "-ldl").CombinedOutput(); err != nil {
			return nil, fmt.Errorf("compiling %s.c: %w\n%s", name, err, out)
		}
		return os.ReadFile(file)
	})}
}

// install returns the commands that write the program in a container.
func (p program) install(t *testing.T) string {
	t.Helper()
	data, err := p.compile()
	if err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf("[ -e /tmp/%[1]s ] || { echo %[2]s | base64 -d >/tmp/%[1]s && chmod +x /tmp/%[1]s; }\n", p.name, base64.StdEncoding.EncodeToString(data))
}
