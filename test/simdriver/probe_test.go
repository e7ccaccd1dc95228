package simdriver_test

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gpucdi/gpucdi/test/simdriver"
)

func buildProbe(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "probe")
	out, err := exec.Command("cc", "-Wall", "-Wextra", "-Werror", "-o", path, "testdata/probe.c", "-ldl").CombinedOutput()
	if err != nil {
		t.Fatalf("compiling the probe: %v\n%s", err, out)
	}
	return path
}

// probe is a running program that has the simulated NVML loaded.
type probe struct {
	t   *testing.T
	cmd *exec.Cmd
	in  io.Writer
	out *bufio.Scanner
}

// startProbe runs the probe on a driver; env comes after the driver's own.
func startProbe(t *testing.T, d *simdriver.Driver, env ...string) *probe {
	t.Helper()
	cmd := exec.Command(buildProbe(t))
	cmd.Env = append(d.Command("nvidia-smi").Env, env...)
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill() // it may have ended by itself
		_ = cmd.Wait()
	})
	return &probe{t, cmd, in, bufio.NewScanner(out)}
}

// send starts a call, and answer waits for what it says: the NVML return code
// and, when that is 0, what the call told.
func (p *probe) send(call string) {
	p.t.Helper()
	if _, err := fmt.Fprintln(p.in, call); err != nil {
		p.t.Fatalf("%s: %v", call, err)
	}
}

func (p *probe) answer() string {
	p.t.Helper()
	if !p.out.Scan() {
		return "dead"
	}
	return strings.TrimSpace(p.out.Text())
}

func (p *probe) ask(call string) string {
	p.t.Helper()
	p.send(call)
	return p.answer()
}

// want asks, and fails the test when the answer is another.
func (p *probe) want(call, answer string) {
	p.t.Helper()
	if got := p.ask(call); got != answer {
		p.t.Errorf("%s: got %q, want %q", call, got, answer)
	}
}

// open initialises NVML and takes a handle of every GPU.
func (p *probe) open(gpus int) {
	p.t.Helper()
	p.want("init", "0")
	p.want("count", fmt.Sprintf("0 %d", gpus))
	for i := range gpus {
		p.want(fmt.Sprintf("handle %d", i), "0")
	}
}
