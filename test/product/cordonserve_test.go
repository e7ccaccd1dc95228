package product_test

import (
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/gpucdi/gpucdi/test/product"
	"github.com/gpucdi/gpucdi/test/simdriver"
)

// A cordon applies to a running agent, to an agent that starts later, and to an agent that restarts after a kill.
func TestCordonOfAgent(t *testing.T) {
	binary, err := product.Build(t.Context(), t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	h, dir := newHost(t, binary, simdriver.H100x8()), t.TempDir()
	address := "127.0.0.1:1" // no agent
	serve := func() *exec.Cmd {
		cmd := exec.Command(binary, "serve", "--host-root", h.root, "--listen", "127.0.0.1:0", "--kubelet-dir", filepath.Join(dir, "kubelet"),
			"--cdi-dir", filepath.Join(dir, "cdi"), "--state-dir", filepath.Join(dir, "state"))
		log, err := os.Create(filepath.Join(t.TempDir(), "agent.log"))
		if err != nil {
			t.Fatal(err)
		}
		cmd.Env, cmd.Stderr = append(os.Environ(), h.driver.Env("")...), io.MultiWriter(os.Stderr, log)
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait(); log.Close() })
		address = awaitAddress(t, log.Name())
		return cmd
	}
	for _, name := range []string{"kubelet/device-plugins", "cdi"} {
		if err := os.MkdirAll(filepath.Join(dir, name), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	run := func(command, gpu string) {
		t.Helper()
		h.must(t, command, gpu, "--state-dir", filepath.Join(dir, "state"), "--address", address)
	}
	awaitCordoned := func(want bool) {
		t.Helper()
		out := ""
		for start := time.Now(); time.Since(start) < time.Minute; time.Sleep(50 * time.Millisecond) {
			cmd := exec.Command(binary, "status", "--address", address, "-o", "json")
			printed, _ := cmd.CombinedOutput()
			if out = string(printed); strings.Contains(out, `"code": "cordoned"`) == want && strings.Contains(out, `"health"`) {
				return
			}
		}
		t.Fatalf("want a cordoned GPU in the status: %t, got:\n%s", want, out)
	}
	first, second := h.driver.State().GPUs[0].UUID, h.driver.State().GPUs[1].UUID
	run("cordon", first)
	agent := serve()
	awaitCordoned(true)
	run("uncordon", first)
	awaitCordoned(false)
	run("cordon", second)
	awaitCordoned(true)
	if err := agent.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = agent.Wait()
	serve()
	awaitCordoned(true)
	run("uncordon", "1")
	awaitCordoned(false)
}

// awaitAddress returns the address at which an agent serves its status, from its log.
func awaitAddress(t *testing.T, log string) string {
	t.Helper()
	serving := regexp.MustCompile(`msg="serving status and metrics" address=(\S+)`)
	var text []byte
	for start := time.Now(); time.Since(start) < wait; time.Sleep(10 * time.Millisecond) {
		var err error
		if text, err = os.ReadFile(log); err != nil {
			t.Fatal(err)
		}
		if found := serving.FindSubmatch(text); found != nil {
			return string(found[1])
		}
	}
	t.Fatalf("the agent does not serve its status:\n%s", text)
	return ""
}
