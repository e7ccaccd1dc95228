package box_test

import (
	"bufio"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/gpucdi/gpucdi/test/box"
)

// ownerDir makes this test binary the owner of a box there, instead of running tests.
const ownerDir = "BOX_TEST_OWNER_DIR"

func TestMain(m *testing.M) {
	if dir := os.Getenv(ownerDir); dir != "" {
		own(dir, os.Getenv("BOX_TEST_KEEP") == "1")
		return
	}
	os.Exit(m.Run())
}

// own starts a box, says so, and stays until its standard input ends.
func own(dir string, keep bool) {
	b, err := box.Start(context.Background(), box.Config{Dir: dir, Keep: keep})
	if err != nil {
		os.Stdout.WriteString(err.Error() + "\n")
		os.Exit(1)
	}
	if err := b.Command(context.Background(), "sleep", "1000").Start(); err != nil {
		os.Stdout.WriteString(err.Error() + "\n")
		os.Exit(1)
	}
	os.Stdout.WriteString("up\n")
	_, _ = bufio.NewReader(os.Stdin).ReadByte()
}

func TestNothingIsLeftWhenTheOwnerCrashes(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "box")
	owner := startOwner(t, dir)
	cgroups := cgroupsOf(t, dir)
	if err := owner.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = owner.Wait()
	await(t, "the box to be gone", func() bool { return remains(t, dir, cgroups...) == "" })
}

func TestAKeptBoxOutlivesItsOwner(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "box")
	owner := startOwner(t, dir, "BOX_TEST_KEEP=1")
	cgroups := cgroupsOf(t, dir)
	if err := owner.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = owner.Wait()
	kept, err := box.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	if got := output(t, kept.Command(t.Context(), "hostname")); got != "box" {
		t.Errorf("a command in the kept box: %q", got)
	}
	if err := syscall.Kill(kept.Keeper(), syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	await(t, "the box to be gone", func() bool { return remains(t, dir, cgroups...) == "" })
}

// Its commands would run in the machine's own root.
func TestABoxInAChrootIsRefused(t *testing.T) {
	chroot, dir := t.TempDir(), filepath.Join(t.TempDir(), "box")
	wd, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	owner := exec.Command("unshare", "--mount", "sh", "-ec",
		`mount --rbind / "$0"; exec chroot "$0" sh -c 'cd "$0" && exec "$1"' "$@"`, chroot, wd, os.Args[0])
	owner.Env = append(os.Environ(), ownerDir+"="+dir)
	out, err := owner.CombinedOutput()
	if err == nil || !strings.Contains(string(out), "cannot be made in a chroot") {
		t.Errorf("%v, %s", err, out)
	}
	await(t, "nothing to be left", func() bool { return remains(t, dir) == "" })
}

// startOwner runs this test binary as the owner of a box.
func startOwner(t *testing.T, dir string, env ...string) *exec.Cmd {
	t.Helper()
	owner := exec.Command(os.Args[0])
	owner.Env = append(append(os.Environ(), ownerDir+"="+dir), env...)
	out, err := owner.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := owner.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	if err := owner.Start(); err != nil {
		t.Fatal(err)
	}
	if line, err := bufio.NewReader(out).ReadString('\n'); line != "up\n" {
		t.Fatalf("the owner of a box says %q, %v", line, err)
	}
	return owner
}
