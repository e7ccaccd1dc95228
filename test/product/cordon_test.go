package product_test

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/gpucdi/gpucdi/test/product"
	"github.com/gpucdi/gpucdi/test/simdriver"
)

// Without an agent, GPUs and MIG devices can be cordoned by index and UUID, which the driver reports.
func TestCordon(t *testing.T) {
	binary, err := product.Build(t.Context(), t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	h, state := newHost(t, binary, simdriver.A100MIG()), t.TempDir()
	if err := h.driver.Partition(h.driver.State().GPUs[4].UUID, "1g.5gb"); err != nil {
		t.Fatal(err)
	}
	gpus := h.list(t).GPUs
	whole, partitioned, mig := gpus[0].UUID, gpus[4].UUID, gpus[4].MIGDevices[0].UUID
	run := func(args ...string) (int, string) {
		code, stdout, stderr := h.run(t, append(args, "--address", "127.0.0.1:1", "--state-dir", state)...)
		return code, stdout + stderr
	}
	for _, tc := range []struct {
		args []string
		code int
		want string
	}{
		{[]string{"cordon", "0", "--reason", "fan"}, 0, "GPU 0 (" + whole + ") cordoned"},
		{[]string{"cordon", strings.ToUpper(whole), "--reason", "fan again"}, 0, "GPU 0 (" + whole + ") cordoned"},
		{[]string{"cordon", "4:0"}, 0, "GPU 4:0 (" + mig + ") cordoned"},
		{[]string{"cordon", partitioned}, 0, "cordoned"},
		{[]string{"uncordon", mig}, 1, "stays cordoned with its GPU; run gpucdi uncordon " + partitioned},
		{[]string{"uncordon", "4"}, 0, "GPU 4 (" + partitioned + ") uncordoned"},
		{[]string{"uncordon", "0"}, 0, "GPU 0 (" + whole + ") uncordoned"},
		{[]string{"uncordon", "0"}, 0, "is not cordoned"},
		{[]string{"cordon", "GPU-00000000-0000-0000-0000-000000000000"}, 0, "(not found on this node) cordoned"},
		{[]string{"cordon", "99"}, 1, "no such GPU on this node"},
		{[]string{"cordon", "../../etc/passwd"}, 1, "no such GPU on this node"},
		{[]string{"cordon", ""}, 1, "no such GPU on this node"},
		{[]string{"cordon"}, 2, "accepts 1 arg"},
		{[]string{"cordon", "0", "--reason", "a\nb"}, 2, "on one line"},
		{[]string{"cordon", "0", "--reason", strings.Repeat("x", 201)}, 2, "at most 200 bytes"},
	} {
		if code, out := run(tc.args...); code != tc.code || !strings.Contains(out, tc.want) {
			t.Errorf("gpucdi %s: exit code %d, want %d with %q\n%s", strings.Join(tc.args, " "), code, tc.code, tc.want, out)
		}
	}
	if err := h.driver.Unload(); err != nil {
		t.Fatal(err)
	}
	if code, out := run("cordon", "0"); code != 1 || !strings.Contains(out, "use a UUID") {
		t.Errorf("index without a driver: exit code %d\n%s", code, out)
	}
	if code, out := run("cordon", whole); code != 0 {
		t.Errorf("UUID without a driver: exit code %d\n%s", code, out)
	}
	if code, _, out := h.run(t, "cordon", whole, "--address", "127.0.0.1:1", "--state-dir", "/proc/nowhere"); code != 1 || !strings.Contains(out, "--state-dir") {
		t.Errorf("missing state directory: exit code %d\n%s", code, out)
	}
}

// A cordon command that is killed at any time leaves either the earlier file or the complete new one. The kills
// approach the time of the write: if a command has written the file, the next kill is earlier, otherwise later.
func TestKilledCordon(t *testing.T) {
	const uuid, tries = "GPU-00000000-0000-0000-0000-000000000000", 40
	binary, err := product.Build(t.Context(), t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	state, root := t.TempDir(), t.TempDir()
	start := func(reason string) *exec.Cmd {
		cmd := exec.Command(binary, "cordon", uuid, "--reason", reason, "--host-root", root, "--address", "127.0.0.1:1", "--state-dir", state)
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		return cmd
	}
	begin, last := time.Now(), "complete"
	if err := start(last).Wait(); err != nil {
		t.Fatal(err)
	}
	delay := time.Since(begin)
	written := 0
	for i := range tries {
		reason := strconv.Itoa(i)
		cmd := start(reason)
		time.Sleep(delay)
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		var record struct{ Reason string }
		text, err := os.ReadFile(filepath.Join(state, "cordons", uuid+".json"))
		if err != nil {
			t.Fatal(err)
		}
		if err := json.Unmarshal(text, &record); err != nil || record.Reason != last && record.Reason != reason {
			t.Fatalf("after a kill the file contains %q, want the reason %s or %s", text, last, reason)
		}
		delay = delay * 10 / 9
		if record.Reason == reason {
			written, last, delay = written+1, reason, delay*8/10
		}
	}
	t.Logf("%d of %d killed commands had written the file", written, tries)
}
