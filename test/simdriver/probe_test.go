package simdriver_test

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gpucdi/gpucdi/test/simdriver"
)

// wait is how long a test waits for a probe.
const wait = 2 * time.Minute

// buildProbe returns the path of the compiled probe.
func buildProbe(t *testing.T) string {
	t.Helper()
	path, err := compileProbe()
	must(t, err)
	return path
}

// probeDir is the directory of the compiled probe; empty before the first test that requires it.
var probeDir string

var compileProbe = sync.OnceValues(func() (path string, err error) {
	if probeDir, err = os.MkdirTemp("", "probe-"); err != nil {
		return "", err
	}
	path = filepath.Join(probeDir, "probe")
	out, err := exec.Command("cc", "-Wall", "-Wextra", "-Werror", "-o", path, "testdata/probe.c", "-ldl").CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("compiling the probe: %w\n%s", err, out)
	}
	return path, nil
})

// probe is a running program that has loaded the simulated NVML.
type probe struct {
	t   *testing.T
	cmd *exec.Cmd
	in  io.Writer
	out *bufio.Scanner
}

// startProbe starts a probe with the environment of a driver and env.
func startProbe(t *testing.T, d *simdriver.Driver, env ...string) *probe {
	t.Helper()
	return startProbeCommand(t, d, exec.Command(buildProbe(t)), env...)
}

// startProbeCommand is like startProbe but takes the command that runs the probe.
func startProbeCommand(t *testing.T, d *simdriver.Driver, cmd *exec.Cmd, env ...string) *probe {
	t.Helper()
	cmd.Env = append(d.Command("nvidia-smi").Env, env...)
	return startCommand(t, cmd)
}

// startCommand starts a command, and kills it at the end of the test.
func startCommand(t *testing.T, cmd *exec.Cmd) *probe {
	t.Helper()
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
		_ = cmd.Process.Kill() // it may have exited
		_ = cmd.Wait()
	})
	return &probe{t, cmd, in, bufio.NewScanner(out)}
}

// kill kills the probe, and returns when it has exited.
func (p *probe) kill() {
	p.t.Helper()
	must(p.t, p.cmd.Process.Kill())
	_ = p.cmd.Wait() // killed
}

// send starts a call.
func (p *probe) send(call string) {
	p.t.Helper()
	if _, err := fmt.Fprintln(p.in, call); err != nil {
		p.t.Fatalf("%s: %v", call, err)
	}
}

// result waits for the result of a call: the return code of NVML or CUDA and, if that is 0, the output value. It
// returns "exited" if the probe has exited, and "hangs" after killing a probe that prints no result.
func (p *probe) result() string {
	p.t.Helper()
	limit := time.AfterFunc(wait, func() { _ = p.cmd.Process.Kill() })
	printed := p.out.Scan()
	switch {
	case !limit.Stop():
		return "hangs"
	case !printed:
		return "exited"
	}
	return strings.TrimSpace(p.out.Text())
}

// want makes a call, and fails the test unless it has this result.
func (p *probe) want(call, result string) {
	p.t.Helper()
	p.send(call)
	if got := p.result(); got != result {
		p.t.Errorf("%s: got %q, want %q", call, got, result)
	}
}

// open initializes NVML and gets a handle of every GPU.
func (p *probe) open(gpus int) {
	p.t.Helper()
	p.want("init", "0")
	p.want("count", fmt.Sprintf("0 %d", gpus))
	for i := range gpus {
		p.want(fmt.Sprintf("handle %d", i), "0")
	}
}
