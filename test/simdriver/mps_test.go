package simdriver_test

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/gpucdi/gpucdi/test/simdriver"
)

const mpsVersion = "615.71.09"

// mps is the MPS control daemon of a driver.
type mps struct {
	t      *testing.T
	driver *simdriver.Driver
	dir    string // pipe directory
	log    string // log directory
	cmd    *exec.Cmd
}

// newMPS returns a daemon that is not running, of a driver with four GPUs of 142 multiprocessors.
func newMPS(t *testing.T) *mps {
	t.Helper()
	profile := simdriver.PCIe4()
	profile.Version = mpsVersion
	m := &mps{t: t, driver: install(t, profile), dir: filepath.Join(t.TempDir(), "mps"), log: t.TempDir()}
	t.Cleanup(func() { _, _ = m.try("-q") }) // fails without a daemon in the background
	return m
}

func startMPS(t *testing.T) *mps {
	t.Helper()
	m := newMPS(t)
	m.start()
	return m
}

func (m *mps) uuid(i int) string { return m.driver.State().GPUs[i].UUID }

// command returns a command that runs the control program.
func (m *mps) command(args ...string) *exec.Cmd {
	cmd := m.driver.Command("nvidia-cuda-mps-control", args...)
	cmd.Env = append(cmd.Env, "CUDA_MPS_PIPE_DIRECTORY="+m.dir, "CUDA_MPS_LOG_DIRECTORY="+m.log)
	return cmd
}

// start starts the daemon in the foreground, and waits until it accepts commands.
func (m *mps) start() {
	m.t.Helper()
	m.startCommand(m.command("-p", "3", "-m", "-f"))
}

func (m *mps) startCommand(cmd *exec.Cmd) {
	m.t.Helper()
	m.cmd = cmd
	m.cmd.Stderr = os.Stderr
	must(m.t, m.cmd.Start())
	m.t.Cleanup(func() {
		_ = cmd.Process.Kill() // it may have exited
		_ = cmd.Wait()
	})
	m.await("socket of the daemon", func() bool {
		c, err := net.Dial("unix", filepath.Join(m.dir, "control"))
		if err == nil {
			c.Close()
		}
		return err == nil
	})
}

// try runs a command, whose words are separated by spaces.
func (m *mps) try(line string) (out string, err error) {
	return output(m.command(strings.Fields("-p 3 " + line)...))
}

// output returns the standard output of a command. The error contains its standard error.
func output(cmd *exec.Cmd) (string, error) {
	out, err := cmd.Output()
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
		err = fmt.Errorf("%w: %s", err, exit.Stderr)
	}
	return string(out), err
}

// run runs a command, which must succeed.
func (m *mps) run(line string) string {
	m.t.Helper()
	out, err := m.try(line)
	if err != nil {
		m.t.Fatalf("%s: %v", line, err)
	}
	return out
}

// fails runs a command, which must fail with this error.
func (m *mps) fails(line, want string) {
	m.t.Helper()
	checkFailure(m.t, m.command(strings.Fields("-p 3 "+line)...), want)
}

// checkFailure runs a command, which must exit with status 1 and this error.
func checkFailure(t *testing.T, cmd *exec.Cmd, want string) {
	t.Helper()
	out, err := output(cmd)
	if out != "" || err == nil || !strings.Contains(err.Error(), "exit status 1: ") || !strings.Contains(err.Error(), want) {
		t.Errorf("%v: output %q, error %v; want %q", cmd.Args[1:], out, err, want)
	}
}

// want runs a command, which must have this output.
func (m *mps) want(line, want string) {
	m.t.Helper()
	if got := m.run(line); got != want {
		m.t.Errorf("%s: got %q, want %q", line, got, want)
	}
}

func (m *mps) await(what string, done func() bool) {
	m.t.Helper()
	for start := time.Now(); !done(); time.Sleep(time.Millisecond) {
		if time.Since(start) > time.Minute {
			m.t.Fatalf("no %s after a minute", what)
		}
	}
}

// probe starts a program with a pipe directory below the daemon's.
func (m *mps) probe(dir string, env ...string) *probe {
	m.t.Helper()
	return startProbe(m.t, m.driver, append(env, "CUDA_MPS_PIPE_DIRECTORY="+filepath.Join(m.dir, dir))...)
}

// files lists the files and directories below the pipe directory.
func (m *mps) files() string {
	m.t.Helper()
	var names []string
	must(m.t, filepath.WalkDir(m.dir, func(path string, _ os.DirEntry, err error) error {
		if path != m.dir {
			names = append(names, strings.TrimPrefix(path, m.dir+"/"))
		}
		return err
	}))
	return strings.Join(names, " ")
}

func TestMPSServers(t *testing.T) {
	m := startMPS(t)
	m.want("server list --format=csv,noheader", "")
	m.run("server create a")
	m.run("server create b_2 --uid=0 --allowed-devices=" + m.uuid(0) + "," + m.uuid(1))
	pid := strings.TrimSpace(m.run("server get a pid"))
	m.want("server list a --format=csv", "name,uid,pid,status,pipe-directory,allowed-devices,context-ids\na,0,"+pid+",Ready,"+m.dir+"/a,-,-\n")
	m.want("server get b_2 allowed-devices", m.uuid(0)+","+m.uuid(1)+"\n")
	m.want("server get b_2 status", "Ready\n")
	if got := m.run("server list"); !regexp.MustCompile(`^name +uid +pid .*\na +0 +` + pid + ` .*\nb_2 +0 .*\n$`).MatchString(got) {
		t.Errorf("table of servers:\n%s", got)
	}
	if out, err := os.ReadFile("/proc/" + pid + "/cmdline"); err != nil || !strings.Contains(string(out), "nvidia-cuda-mps-server\x00a\x00") {
		t.Errorf("process of server a: %q, %v", out, err)
	}
	const want = "a a/control a/default a/default/control b_2 b_2/control b_2/default b_2/default/control control"
	if got := m.files(); got != want {
		t.Errorf("pipe directory contains %s, want %s", got, want)
	}

	for line, want := range map[string]string{
		"server create a":                          "Server 'a' already exists",
		"server create A":                          "Invalid name 'A'",
		"server create a-b":                        "Invalid name 'a-b'",
		"server create ../a":                       "Invalid name '../a'",
		"server create " + strings.Repeat("a", 65): "Invalid name",
		"server create " + strings.Repeat("a", 64): "longer than 107 bytes",
		"server create control":                    "File exists",
		"server create c --uid=1000":               "In multiuser mode",
		"server create c --uid=me":                 "Invalid UID 'me'",
		"server create":                            "requires 1 to 1 arguments",
		"server create c --gpus=all":               "Unknown option '--gpus=all'",
		"server delete c":                          "Server 'c' does not exist",
		"server list c":                            "Server 'c' does not exist",
		"server list --format=json":                "Unknown format 'json'",
		"server get a nothing":                     "Unknown field 'nothing'",
		"server start a":                           "Unknown command 'server start a'",
	} {
		m.fails(line, want)
	}
	m.run("server delete a")
	m.run("server delete b_2")
	if got := m.files(); got != "control" {
		t.Errorf("pipe directory contains %s without servers", got)
	}
	if exists("/proc/" + pid) {
		t.Error("process of a deleted server exists")
	}
	log, err := os.ReadFile(filepath.Join(m.log, "control.log"))
	must(t, err)
	for _, line := range []string{"uid=0 server create a\n", "uid=0 server create A\n", "uid=0 server delete b_2\n"} {
		if strings.Count(string(log), line) == 0 {
			t.Errorf("log lacks %q:\n%s", line, log)
		}
	}
}

func TestMPSNamespaces(t *testing.T) {
	m := startMPS(t)
	m.run("server create a")
	m.run("server create b")
	m.run("namespace create half --server=a")
	m.run("namespace create half --server=b")
	m.run("namespace set half --server=a --active-thread-percentage=50 --pinned-memory-limit=4G")
	m.run("server set b --active-thread-percentage=12.5")
	m.want("namespace list --server=a --format=csv", "name,server,server-status,pinned-memory-limit,active-thread-percentage,client-priority,pipe-directory\n"+
		"default,a,Ready,-,100.00,0,"+m.dir+"/a/default\nhalf,a,Ready,4G,50.00,0,"+m.dir+"/a/half\n")
	m.want("namespace list half --format=csv,noheader", "half,a,Ready,4G,50.00,0,"+m.dir+"/a/half\nhalf,b,Ready,-,100.00,0,"+m.dir+"/b/half\n")
	m.want("namespace get default b active-thread-percentage", "12.50\n")
	for line, want := range map[string]string{
		"namespace create half --server=a":                             "already exists",
		"namespace create Half --server=a":                             "Invalid name 'Half'",
		"namespace create half":                                        "Missing option --server",
		"namespace create half --server=c":                             "Server 'c' does not exist",
		"namespace delete third --server=a":                            "Namespace 'third' of server 'a' does not exist",
		"namespace delete default --server=a":                          "cannot be deleted",
		"namespace set half --server=a":                                "Missing option",
		"namespace set half --server=a --active-thread-percentage=0":   "Invalid percentage '0'",
		"namespace set half --server=a --active-thread-percentage=101": "Invalid percentage '101'",
		"namespace set half --server=a --active-thread-percentage=50%": "Invalid percentage '50%'",
		"namespace set half --server=a --pinned-memory-limit=much":     "Invalid size 'much'",
		"namespace get half a nothing":                                 "Unknown field 'nothing'",
	} {
		m.fails(line, want)
	}
	m.run("namespace delete half --server=a")
	if exists(filepath.Join(m.dir, "a/half")) || !exists(filepath.Join(m.dir, "b/half/control")) {
		t.Errorf("pipe directory contains %s", m.files())
	}
}

// Only root can change anything, and only peers whose PID the daemon can determine are served.
func TestMPSPeers(t *testing.T) {
	m := startMPS(t)
	m.run("server create a")
	for _, dir := range []string{m.dir, m.driver.LibraryPath()} {
		for strings.HasPrefix(dir, os.TempDir()+"/") {
			dir = filepath.Dir(dir)
			if dir != os.TempDir() {
				must(t, os.Chmod(dir, 0o755))
			}
		}
	}
	unprivileged := &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 60000, Gid: 60000}}
	for line, name := range map[string]string{
		"server create b": "SERVER CREATE",
		"server set a --active-thread-percentage=1":                      "SERVER SET",
		"server delete a --force":                                        "SERVER DELETE",
		"namespace create b --server=a":                                  "NAMESPACE CREATE",
		"namespace delete default --server=a":                            "NAMESPACE DELETE",
		"namespace set default --server=a --active-thread-percentage=10": "NAMESPACE SET",
		"client terminate 1":                                             "CLIENT TERMINATE",
		"-q":                                                             "DAEMON QUIT",
	} {
		cmd := m.command(strings.Fields(line)...)
		cmd.SysProcAttr = unprivileged
		checkFailure(t, cmd, "Insufficient privileges for UID 60000. '"+name+"' requires server owner.\n")
	}
	list := m.command("server", "get", "a", "status")
	list.SysProcAttr = unprivileged
	if out, err := output(list); out != "Ready\n" || err != nil {
		t.Errorf("status for an unprivileged user: %q, %v", out, err)
	}
	log, err := os.ReadFile(filepath.Join(m.log, "control.log"))
	must(t, err)
	if line := "uid=60000 server delete a --force\n"; !strings.Contains(string(log), line) {
		t.Errorf("log lacks %q:\n%s", line, log)
	}
	m.run("-q")

	isolated := func(line string, launcher ...string) *exec.Cmd {
		cmd := m.command(strings.Fields("-p 3 " + line)...)
		cmd.Args = append(launcher, cmd.Args...)
		cmd.Path, err = exec.LookPath(launcher[0])
		must(t, err)
		return cmd
	}
	must(t, os.RemoveAll(m.dir))
	m.startCommand(isolated("-m -f", "unshare", "--pid", "--fork", "--kill-child", "--mount-proc"))
	m.fails("server list", "Cannot determine the PID")
	namespace := fmt.Sprintf("--pid=/proc/%d/ns/pid_for_children", m.cmd.Process.Pid)
	_, err = output(isolated("server create a", "nsenter", namespace))
	must(t, err)
	m.probe("a").want("cuinit", cudaConnectionFailed)
}

// Without multiuser mode, a server accepts clients of its own user only.
func TestMPSSingleUser(t *testing.T) {
	m := newMPS(t)
	m.startCommand(m.command("-p", "3", "-f"))
	m.run("server create a")
	m.run("server create b --uid=60000")
	m.probe("a").want("cuinit", "0")
	m.probe("b").want("cuinit", cudaConnectionFailed)
}

func TestMPSDaemon(t *testing.T) {
	m := newMPS(t)
	m.fails("server list", "Cannot connect to the MPS control daemon")
	for _, args := range []string{"-f", "-p 2 -f", "-d -f -p 3", "-x", "", "-p 3 -f server"} {
		checkFailure(t, m.command(strings.Fields(args)...), "Usage: ")
	}
	if out, err := output(m.command("-v")); err != nil || !strings.Contains(out, "nvidia-cuda-mps-control") {
		t.Errorf("version: %q, %v", out, err)
	}

	m.run("-d -m") // returns when the daemon accepts commands
	m.run("server create a")
	client := m.probe("a")
	client.want("context 0", "0 142")
	checkFailure(t, m.command("-p", "3", "-d"), "already running")
	m.run("-q")
	m.awaitFailure(client, cudaTerminated)
	if got := m.files(); got != "" {
		t.Errorf("pipe directory contains %s without a daemon", got)
	}

	m.start()
	m.run("server create a")
	m.run("namespace create n --server=a")
	pid := strings.TrimSpace(m.run("server get a pid"))
	client = m.probe("a")
	client.want("context 0", "0 142")
	must(t, m.cmd.Process.Kill())
	_ = m.cmd.Wait() // killed
	m.awaitFailure(client, cudaRPCFailure)
	m.await("end of the server", func() bool { return !exists("/proc/" + pid) })
	m.probe("a").want("context 0", "0 142") // without MPS: nothing listens on the socket
	m.run("-d")
	if got := m.files(); got != "control" {
		t.Errorf("pipe directory contains %s after a restart", got)
	}
	m.run("-q")
	m.start()
	m.run("server create a")
	must(t, m.cmd.Process.Signal(syscall.SIGTERM))
	must(t, m.cmd.Wait())
	if got := m.files(); got != "" {
		t.Errorf("pipe directory contains %s without a daemon", got)
	}
}

// Drivers before 615 do not support protocol 3 of MPS.
func TestMPSOldDriver(t *testing.T) {
	d := install(t, simdriver.PCIe4())
	checkFailure(t, d.Command("nvidia-cuda-mps-control", "-p", "3", "-f"), "unrecognized option '-p'")
	must(t, d.Upgrade(mpsVersion))
	if out, err := output(d.Command("nvidia-cuda-mps-control", "-p", "3", "-v")); err != nil {
		t.Errorf("after an upgrade: %q, %v", out, err)
	}
}
