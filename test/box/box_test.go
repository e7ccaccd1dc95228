package box_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpucdi/gpucdi/test/box"
	"github.com/gpucdi/gpucdi/test/box/internal/spec"
)

// ownerDir is an environment variable. If it is set to a directory, this test binary owns a box in that directory
// instead of running tests.
const ownerDir = "BOX_TEST_OWNER_DIR"

func TestMain(m *testing.M) {
	if dir := os.Getenv(ownerDir); dir != "" {
		own(dir, os.Getenv("BOX_TEST_KEEP") == "1")
		return
	}
	os.Exit(m.Run())
}

// own starts a box, prints "up", and exits at the end of its standard input.
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

func start(t *testing.T, cfg box.Config) *box.Box {
	t.Helper()
	cfg.Dir = filepath.Join(t.TempDir(), "box")
	b, err := box.Start(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	cgroups := cgroupsOf(t, cfg.Dir)
	t.Cleanup(func() {
		if err := b.Close(); err != nil {
			t.Error(err)
		}
		if found := leftovers(t, cfg.Dir, cgroups...); found != "" {
			t.Errorf("leftovers: %s", found)
		}
	})
	return b
}

// cgroupsOf returns the cgroups of the box in dir.
func cgroupsOf(t *testing.T, dir string) []string {
	t.Helper()
	s, err := spec.Read(dir)
	if err != nil {
		t.Fatal(err)
	}
	var paths []string
	for _, c := range s.Cgroups {
		if _, err := os.Stat(c.Path); err != nil {
			t.Errorf("cgroup of the box: %v", err)
		}
		paths = append(paths, c.Path)
	}
	return paths
}

// leftovers lists the directories, mounts and processes of a box in dir.
func leftovers(t *testing.T, dir string, cgroups ...string) string {
	t.Helper()
	var found []string
	for _, path := range append(cgroups, dir) {
		if _, err := os.Stat(path); err == nil {
			found = append(found, path)
		}
	}
	mounts, err := os.ReadFile("/proc/self/mounts")
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(string(mounts), dir) {
		found = append(found, "a mount")
	}
	processes, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range processes {
		if line, err := os.ReadFile(p); err == nil && strings.Contains(string(line), dir) {
			found = append(found, strings.ReplaceAll(string(line), "\x00", " "))
		}
	}
	return strings.Join(found, ", ")
}

func output(t *testing.T, cmd *exec.Cmd) string {
	t.Helper()
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %v\n%s", cmd.Args, err, out)
	}
	return strings.TrimSpace(string(out))
}

func TestIsolation(t *testing.T) {
	b := start(t, box.Config{Hostname: "elsewhere"})
	for _, ns := range []string{"cgroup", "ipc", "mnt", "net", "pid", "uts"} {
		here, err := os.Readlink("/proc/self/ns/" + ns)
		if err != nil {
			t.Fatal(err)
		}
		if there := output(t, b.Command(t.Context(), "readlink", "/proc/self/ns/"+ns)); there == here {
			t.Errorf("%s namespace is the machine's", ns)
		}
	}
	cases := []struct{ name, script, want string }{
		{"host name", "hostname", "elsewhere"},
		{"PID 1", "tr '\\0' ' ' < /proc/1/cmdline | cut -d' ' -f1", "boxinit"},
		{"interfaces", "ls /sys/class/net", "lo"},
		{"loopback", "cat /sys/class/net/lo/operstate", "unknown"},
		{"own /var", "ls /var/lib", ""},
		{"own /run", "ls /run", ""},
		{"container configuration hidden", "ls -d /etc/cni /etc/containerd /etc/kubernetes 2>/dev/null || true", ""},
		{"cgroup", "cut -d: -f3 /proc/self/cgroup | sort -u | grep -v '^/$'", "/init"},
		{"create a cgroup", "d=$(find /sys/fs/cgroup -name init | head -1); mkdir $d/../mine && rmdir $d/../mine && echo created", "created"},
		{"devices", "head -c4 /dev/zero | wc -c; echo x > /dev/null", "4"},
		{"shared root", "findmnt --noheadings --output PROPAGATION /", "shared"},
	}
	for _, tc := range cases {
		t.Run(tc.name, func(t *testing.T) {
			if got := output(t, b.Command(t.Context(), "sh", "-c", tc.script)); got != tc.want {
				t.Errorf("%s: %q, want %q", tc.script, got, tc.want)
			}
		})
	}
}

func TestWritesStayInBox(t *testing.T) {
	b := start(t, box.Config{})
	for _, name := range []string{"/usr/bin/box-test", "/etc/box-test", "/var/box-test", "/tmp/box-test", "/root/box-test", "/run/box-test"} {
		output(t, b.Command(t.Context(), "sh", "-c", "echo inside > "+name))
		if _, err := os.Stat(name); err == nil {
			t.Errorf("%s exists on the machine", name)
		}
		if got, err := os.ReadFile(b.Path(name)); err != nil || string(got) != "inside\n" {
			t.Errorf("%s through Root: %q, %v", name, got, err)
		}
	}
}

func TestSimulated(t *testing.T) {
	b := start(t, box.Config{Simulated: true})
	files := []string{"/proc/driver/nvidia/version", "/proc/devices", "/sys/bus/pci/devices/0000:18:00.0/numa_node", "/usr/lib/libnvidia-test.so.1"}
	for _, name := range files {
		if err := os.MkdirAll(filepath.Dir(b.Path(name)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(b.Path(name), []byte("simulated"), 0o644); err != nil {
			t.Fatal(err)
		}
		if got := output(t, b.Command(t.Context(), "cat", name)); got != "simulated" {
			t.Errorf("%s in the box: %q", name, got)
		}
	}
	if err := unix.Mknod(b.Path("/dev/nvidia0"), unix.S_IFCHR|0o666, int(unix.Mkdev(195, 0))); err != nil {
		t.Fatal(err)
	}
	if got := output(t, b.Command(t.Context(), "stat", "--format=%F %t:%T", "/dev/nvidia0")); got != "character special file c3:0" {
		t.Errorf("/dev/nvidia0 in the box: %s", got)
	}
	if got, err := os.ReadFile("/proc/devices"); err != nil || string(got) == "simulated" {
		t.Errorf("/proc/devices of the machine: %q, %v", got, err)
	}
}

func TestNotSimulated(t *testing.T) {
	b := start(t, box.Config{})
	mounts := output(t, b.Command(t.Context(), "cat", "/proc/self/mounts"))
	for _, path := range []string{"/proc/devices", "/proc/driver", "/sys/bus/pci/devices"} {
		if strings.Contains(mounts, " "+path+" ") {
			t.Errorf("%s in the box is not the kernel's:\n%s", path, mounts)
		}
	}
}

func TestBinds(t *testing.T) {
	from := t.TempDir()
	b := start(t, box.Config{Binds: map[string]string{from: "/srv/shared"}})
	output(t, b.Command(t.Context(), "touch", "/srv/shared/file"))
	if _, err := os.Stat(filepath.Join(from, "file")); err != nil {
		t.Error(err)
	}
}

func TestCommand(t *testing.T) {
	b := start(t, box.Config{})
	var exit *exec.ExitError

	if err := b.Command(t.Context(), "sh", "-c", "exit 7").Run(); !errors.As(err, &exit) || exit.ExitCode() != 7 {
		t.Errorf("exit 7: %v", err)
	}
	if out, err := b.Command(t.Context(), "no-such-command").CombinedOutput(); err == nil || !strings.Contains(string(out), "no-such-command") {
		t.Errorf("unknown command: %v, %s", err, out)
	}

	ctx, cancel := context.WithCancel(t.Context())
	killed := b.Command(ctx, "sleep", "1111")
	if err := killed.Start(); err != nil {
		t.Fatal(err)
	}
	await(t, "the command to run", func() bool { return running(t, b, "sleep 1111") })
	cancel()
	_ = killed.Wait()
	await(t, "the command to exit", func() bool { return !running(t, b, "sleep 1111") })

	trapping := b.Command(t.Context(), "sh", "-c", "trap 'exit 9' TERM; echo ready; while :; do sleep 0.05; done")
	out, err := trapping.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := trapping.Start(); err != nil {
		t.Fatal(err)
	}
	if _, err := bufio.NewReader(out).ReadString('\n'); err != nil {
		t.Fatal(err)
	}
	if err := trapping.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := trapping.Wait(); !errors.As(err, &exit) || exit.ExitCode() != 9 {
		t.Errorf("command that traps SIGTERM: %v", err)
	}
}

// A command is killed when its boxinit process dies, even while the command starts.
func TestKilledCommand(t *testing.T) {
	b := start(t, box.Config{})
	for i := range 60 {
		cmd := b.Command(t.Context(), "sleep", "1112")
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Duration(i) * 300 * time.Microsecond)
		if err := cmd.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		_ = cmd.Wait()
	}
	await(t, "the commands to exit", func() bool { return !running(t, b, "sleep 1112") })
}

func TestOwnerCrash(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "box")
	owner := startOwner(t, dir)
	cgroups := cgroupsOf(t, dir)
	if err := owner.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = owner.Wait()
	await(t, "removal of the box", func() bool { return leftovers(t, dir, cgroups...) == "" })
}

// PID 1 may hang while it builds the root, for example on a network file system.
func TestHangingStart(t *testing.T) {
	hangs := func(t *testing.T, dir string) {
		t.Helper()
		await(t, "PID 1", func() bool { return strings.Contains(leftovers(t, dir), "boxinit inside ") })
	}
	t.Run("context ends", func(t *testing.T) {
		dir := filepath.Join(t.TempDir(), "box")
		makeStartHang(t, dir)
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() {
			_, err := box.Start(ctx, box.Config{Dir: dir})
			ended <- err
		}()
		hangs(t, dir)
		cgroups := cgroupsOf(t, dir)
		cancel()
		select {
		case err := <-ended:
			if !errors.Is(err, context.Canceled) {
				t.Errorf("Start returned %v", err)
			}
		case <-time.After(timeout):
			t.Error("Start does not return")
		}
		if found := leftovers(t, dir, cgroups...); found != "" {
			t.Errorf("leftovers: %s", found)
		}
	})
	t.Run("owner crashes", func(t *testing.T) {
		dir := filepath.Join(t.TempDir(), "box")
		makeStartHang(t, dir)
		owner, _ := newOwner(t, dir)
		hangs(t, dir)
		cgroups := cgroupsOf(t, dir)
		if err := owner.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		_ = owner.Wait()
		await(t, "removal of the box", func() bool { return leftovers(t, dir, cgroups...) == "" })
	})
}

// makeStartHang makes the start of a box in dir hang: before boxinit is installed, the upper layer of /etc gets a named pipe
// without a reader, which PID 1 opens for writing.
func makeStartHang(t *testing.T, dir string) {
	t.Helper()
	replaceInstall(t, `mkdir -p `+dir+`/upper/etc && mkfifo `+dir+`/upper/etc/hosts && exec "$INSTALL" "$@"`)
}

// replaceInstall replaces the command that installs boxinit with a script. $INSTALL is the path of the replaced command.
func replaceInstall(t *testing.T, script string) {
	t.Helper()
	path, err := exec.LookPath("install")
	if err != nil {
		t.Fatal(err)
	}
	bin := t.TempDir()
	if err := os.WriteFile(filepath.Join(bin, "install"), []byte("#!/bin/sh\n"+script+"\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("INSTALL", path)
	t.Setenv("PATH", bin+":"+os.Getenv("PATH"))
}

func TestKeep(t *testing.T) {
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
		t.Errorf("command in the kept box: %q", got)
	}
	if err := kept.Close(); err != nil {
		t.Fatal(err)
	}
	if found := leftovers(t, dir, cgroups...); found != "" {
		t.Errorf("leftovers: %s", found)
	}
}

// After a reboot or a crash of the keeper, another process may have its PID, and must not be killed.
func TestOpenRejectsEndedBox(t *testing.T) {
	dir := t.TempDir()
	other := exec.Command("sleep", "1000")
	if err := other.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = other.Wait() }()
	defer func() { _ = other.Process.Kill() }()
	spec := fmt.Sprintf(`{"Dir": %q, "Keeper": %d, "Init": %[2]d}`, dir, other.Process.Pid)
	if err := os.WriteFile(filepath.Join(dir, "box.json"), []byte(spec), 0o600); err != nil {
		t.Fatal(err)
	}
	if b, err := box.Open(dir); err == nil || !strings.Contains(err.Error(), "has ended") {
		t.Errorf("Open returned %v, %v", b, err)
	}
}

// Connections reach a server in the box, both through Forward and through Dial.
func TestForward(t *testing.T) {
	b := start(t, box.Config{})
	// The server reads until the client ends its half of the connection, then replies.
	server := b.Command(t.Context(), "perl", "-MIO::Socket::INET", "-e",
		`$s = IO::Socket::INET->new(Listen => 9, LocalAddr => "127.0.0.1:7000") or die; $| = 1; print "up\n";
		while ($c = $s->accept) { $text = join "", <$c>; print $c "got $text"; close $c }`)
	up, err := server.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := server.Start(); err != nil {
		t.Fatal(err)
	}
	if line, err := bufio.NewReader(up).ReadString('\n'); err != nil {
		t.Fatal(line, err)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	file, err := listener.(*net.TCPListener).File()
	if err != nil {
		t.Fatal(err)
	}
	forward := b.Forward(t.Context(), file, "127.0.0.1:7000")
	if err := forward.Start(); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(file.Close(), listener.Close()); err != nil {
		t.Fatal(err)
	}
	forwarded := func() (net.Conn, error) { return net.Dial("tcp", listener.Addr().String()) }
	direct := func() (net.Conn, error) { return b.Dial(t.Context(), "tcp", "127.0.0.1:7000") }
	for i, dial := range []func() (net.Conn, error){forwarded, direct, forwarded, direct} {
		conn, err := dial()
		if err != nil {
			t.Fatal(err)
		}
		if _, err := fmt.Fprintf(conn, "hello %d", i); err != nil {
			t.Fatal(err)
		}
		if err := conn.(*net.TCPConn).CloseWrite(); err != nil {
			t.Fatal(err)
		}
		if got, err := io.ReadAll(conn); err != nil || string(got) != fmt.Sprintf("got hello %d", i) {
			t.Errorf("connection %d: %q, %v", i, got, err)
		}
		conn.Close()
	}
	if err := forward.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = forward.Wait()
	await(t, "the port of the machine to be closed", func() bool {
		conn, err := net.Dial("tcp", listener.Addr().String())
		if err == nil {
			conn.Close()
		}
		return err != nil
	})
}

func TestStartErrors(t *testing.T) {
	full := t.TempDir()
	if err := os.WriteFile(filepath.Join(full, "file"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	cases := []struct {
		name string
		cfg  box.Config
		want string
	}{
		{"directory not empty", box.Config{Dir: full}, "not empty"},
		{"comma in the path", box.Config{Dir: t.TempDir() + "/a,b"}, "comma"},
		{"missing bind source", box.Config{Dir: t.TempDir() + "/box", Binds: map[string]string{"/no/such/directory": "/mnt"}}, "/no/such/directory"},
	}
	for _, tc := range cases {
		t.Run(tc.name, func(t *testing.T) {
			_, err := box.Start(t.Context(), tc.cfg)
			if err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("got error %v, want one that contains %q", err, tc.want)
			}
		})
	}
	if found := leftovers(t, filepath.Dir(cases[2].cfg.Dir)+"/box"); found != "" {
		t.Errorf("leftovers: %s", found)
	}
	t.Run("keeper does not start", func(t *testing.T) {
		dir := filepath.Join(t.TempDir(), "box")
		replaceInstall(t, `touch "$3"`)
		_, err := box.Start(t.Context(), box.Config{Dir: dir})
		if err == nil || !strings.Contains(err.Error(), "permission denied") {
			t.Errorf("got error %v, want one from executing boxinit", err)
		}
		if found := leftovers(t, dir); found != "" {
			t.Errorf("leftovers: %s", found)
		}
	})
}

// startOwner runs this test binary as the owner of a box, and waits until the box is up.
func startOwner(t *testing.T, dir string, env ...string) *exec.Cmd {
	t.Helper()
	owner, out := newOwner(t, dir, env...)
	if line, err := bufio.NewReader(out).ReadString('\n'); line != "up\n" {
		t.Fatalf("owner printed %q, %v", line, err)
	}
	return owner
}

// newOwner runs this test binary as the owner of a box.
func newOwner(t *testing.T, dir string, env ...string) (*exec.Cmd, io.Reader) {
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
	return owner, out
}

func running(t *testing.T, b *box.Box, command string) bool {
	t.Helper()
	return strings.Contains(output(t, b.Command(t.Context(), "ps", "-eo", "args")), command)
}

const timeout = 2 * time.Minute // includes building boxinit

func await(t *testing.T, what string, done func() bool) {
	t.Helper()
	for deadline := time.Now().Add(timeout); !done(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("timed out waiting for %s", what)
		}
	}
}
