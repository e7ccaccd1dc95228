package simdriver_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/gpucdi/gpucdi/test/simdriver"
)

// The results of CUDA calls of clients.
const (
	cudaNoDevice         = "100"
	cudaConnectionFailed = "805"
	cudaRPCFailure       = "806"
	cudaServerNotReady   = "807"
	cudaTerminated       = "810"
)

// awaitFailure waits until the calls of a client fail with this result.
func (m *mps) awaitFailure(p *probe, want string) {
	m.t.Helper()
	got := "0"
	m.await("failure of the client", func() bool {
		p.send("synchronize")
		got = p.result()
		return got != "0"
	})
	if got != want {
		m.t.Errorf("calls of the client return %s, want %s", got, want)
	}
}

// The namespace's percentage is a ceiling for the percentage of a client.
func TestMPSPercentages(t *testing.T) {
	m := startMPS(t)
	m.run("server create a")
	m.run("namespace create quarter --server=a")
	m.run("namespace set quarter --server=a --active-thread-percentage=25")
	m.run("namespace create one --server=a")
	m.run("namespace set one --server=a --active-thread-percentage=1")
	for _, tc := range []struct{ dir, own, want string }{
		{"a", "", "142"},
		{"a/default", "", "142"},
		{"a/default", "50", "70"}, // in pairs
		{"a/quarter", "", "34"},
		{"a/quarter", "10", "14"},
		{"a/quarter", "90", "34"},
		{"a/one", "", "2"},
		{"missing", "10", "142"}, // without MPS
		{strings.Repeat("long/", 30), "10", "142"},
	} {
		m.probe(tc.dir, "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE="+tc.own).want("context 0", "0 "+tc.want)
	}
	m.probe(".").want("cuinit", cudaConnectionFailed)
}

func TestMPSClients(t *testing.T) {
	m := startMPS(t)
	m.run("server create removed --allowed-devices=" + m.uuid(0)) // created first, to check its GPU before the removal
	m.run("server create a --allowed-devices=" + m.uuid(2) + "," + m.uuid(1))
	m.run("server create b --allowed-devices=" + m.uuid(3))
	m.run("namespace create part --server=a")
	first, second := m.probe("a/part"), m.probe("b")
	first.want("cuda", fmt.Sprintf("0 2 %s %s", m.uuid(1)[4:12], m.uuid(2)[4:12]))
	second.want("context 0", "0 142")
	line := func(p *probe, server, device, namespace string) string {
		return fmt.Sprintf("%d,%s,%s,%s/%s (0),probe\n", p.cmd.Process.Pid, server, device, server, namespace)
	}
	m.want("client list --server=a --format=csv", "pid,server,device,namespace,command\n"+line(first, "a", "-", "part"))
	first.want("context 1", "0 142")
	first.want("alloc 5", "0")
	m.want("client list --server=a --format=csv,noheader", line(first, "a", m.uuid(1), "part"))
	if got := m.run("client list --all"); strings.Count(got, "\n") != 3 {
		t.Errorf("all clients:\n%s", got)
	}
	m.fails("namespace set part --server=a --active-thread-percentage=50", "has active clients")
	m.fails("namespace delete part --server=a", "has active clients")
	m.fails("server delete a", "has active clients")
	m.fails("client terminate 1", "Client '1' does not exist")
	m.run("server set a --active-thread-percentage=50") // of namespace default, which has no clients

	m.run("client terminate " + strconv.Itoa(first.cmd.Process.Pid))
	m.awaitFailure(first, cudaTerminated)
	first.want("context 0", cudaTerminated)
	m.want("client list --server=a --format=csv,noheader", "")
	m.run("namespace set part --server=a --active-thread-percentage=50")

	third := m.probe("a/part")
	third.want("context 0", "0 70")
	m.run("namespace delete part --server=a --force")
	m.awaitFailure(third, cudaTerminated)
	m.run("server delete b --force")
	m.awaitFailure(second, cudaTerminated)

	ended := m.probe("a")
	ended.want("context 0", "0 70")
	ended.kill()
	m.run("server delete a")
	must(t, m.driver.Lose(m.uuid(0)))
	m.probe("removed").want("cuinit", cudaNoDevice)
}

// A server that is killed disconnects its clients, and is listed until it is deleted.
func TestMPSServerKilled(t *testing.T) {
	m := startMPS(t)
	m.run("server create a")
	client := m.probe("a")
	client.want("context 0", "0 142")
	pid, err := strconv.Atoi(strings.TrimSpace(m.run("server get a pid")))
	must(t, err)
	must(t, syscall.Kill(pid, syscall.SIGKILL))
	m.awaitFailure(client, cudaRPCFailure)
	client.want("alloc 1", cudaRPCFailure)
	m.want("server get a status", "Fault\n")
	m.want("namespace get default a server-status", "Fault\n")
	m.probe("a").want("cuinit", cudaServerNotReady)
	m.run("server delete a")
	m.run("server create a")
	m.probe("a").want("cuinit", "0")
}

// Devices are not checked before the server exists.
func TestMPSUnknownDevice(t *testing.T) {
	m := startMPS(t)
	m.run("server create a --allowed-devices=" + m.uuid(0) + ",GPU-unknown")
	m.await("end of the server", func() bool { return m.run("server list --format=csv,noheader") == "" })
	if got := m.files(); got != "control" {
		t.Errorf("pipe directory contains %s", got)
	}
	m.probe("a").want("context 3", "0 142")
}

// This tests the program that end-to-end tests run in containers.
func TestMPSContextProgram(t *testing.T) {
	m := startMPS(t)
	m.run("server create a")
	m.run("server set a --active-thread-percentage=50")
	program := filepath.Join(t.TempDir(), "context")
	if out, err := exec.Command("cc", "-Wall", "-Wextra", "-Werror", "-o", program, "../e2e/testdata/context.c", "-ldl").CombinedOutput(); err != nil {
		t.Fatalf("compiling the program: %v\n%s", err, out)
	}
	start := func(args ...string) (nextLine func() string) {
		cmd := exec.Command(program, args...)
		cmd.Env = append(m.command().Env, "CUDA_MPS_PIPE_DIRECTORY="+filepath.Join(m.dir, "a/default"))
		p := startCommand(t, cmd)
		return p.result
	}
	if line := start()(); line != "0 70" {
		t.Errorf("context: %q", line)
	}
	hold := start("hold")
	if line := hold(); line != "0 70" {
		t.Errorf("context hold: %q", line)
	}
	m.fails("server delete a", "has active clients")
	m.run("server delete a --force")
	if line := hold(); line != cudaTerminated {
		t.Errorf("context hold after the server was deleted: %q", line)
	}
}

// In mode EXCLUSIVE_PROCESS, a server has its GPU even without clients. Clients of the server can use it, also in other PID
// namespaces, but no other program can.
func TestMPSExclusiveProcess(t *testing.T) {
	m := startMPS(t)
	admin := startProbe(t, m.driver)
	admin.open(4)
	admin.want("mode 0 "+modeExclusive, "0")
	m.run("server create a --allowed-devices=" + m.uuid(0))
	m.awaitContext("a")
	none := m.probe("missing")
	none.want("context 0", cudaDeviceUnavailable)
	none.want("context 1", "0 142")

	isolated := startProbeCommand(t, m.driver, exec.Command("unshare", "--pid", "--fork", "--kill-child", "--mount-proc", buildProbe(t)),
		"CUDA_MPS_PIPE_DIRECTORY="+filepath.Join(m.dir, "a"))
	client := m.probe("a")
	client.want("context 0", "0 142")
	isolated.want("context 0", "0 142")
	none.want("context 0", cudaDeviceUnavailable)
	client.kill()
	isolated.kill()
	none.want("context 0", cudaDeviceUnavailable)
	m.run("server create b --allowed-devices=" + m.uuid(0))
	m.await("end of server b", func() bool { return !exists(filepath.Join(m.dir, "b")) })

	m.run("server delete a --force")
	none.want("context 0", "0 142")
	m.run("server create a --allowed-devices=" + m.uuid(0))
	m.await("end of server a", func() bool { return !exists(filepath.Join(m.dir, "a")) })
	none.kill()
	m.run("server create a --allowed-devices=" + m.uuid(0))
	m.awaitContext("a")
	m.probe("missing").want("context 0", cudaDeviceUnavailable)
}

// awaitContext waits until a server has a context on its GPU, which is a lock of its process.
func (m *mps) awaitContext(server string) {
	m.t.Helper()
	pid := strings.TrimSpace(m.run("server get " + server + " pid"))
	m.await("context of the server", func() bool {
		locks, err := os.ReadFile("/proc/locks")
		must(m.t, err)
		return strings.Contains(string(locks), " POSIX  ADVISORY  READ "+pid+" ")
	})
}

func TestMPSFaults(t *testing.T) {
	m := startMPS(t)
	m.run("server create a")
	m.run("server create b")
	client := m.probe("a")
	client.want("context 0", "0 142")

	must(t, simdriver.SetMPSFault(filepath.Join(m.dir, "a"), simdriver.MPSWedged))
	hanging := m.probe("a")
	hanging.send("cuinit")
	m.want("server get a status", "Ready\n")
	m.probe("b").want("cuinit", "0")
	client.want("synchronize", "0")
	m.checkHangs(hanging)
	must(t, simdriver.ClearMPSFault(filepath.Join(m.dir, "a"), simdriver.MPSWedged))
	if got := hanging.result(); got != "0" {
		t.Errorf("cuInit returns %s when the fault ends", got)
	}
	must(t, simdriver.SetMPSFault(m.dir, simdriver.MPSWedged)) // all servers
	hanging = m.probe("b")
	hanging.send("cuinit")
	m.checkHangs(hanging)
	m.run("server delete b --force")
	if got := hanging.result(); got != cudaConnectionFailed {
		t.Errorf("cuInit returns %s when the server is deleted", got)
	}
	must(t, simdriver.ClearMPSFault(m.dir, simdriver.MPSWedged))

	must(t, simdriver.SetMPSFault(m.dir, simdriver.MPSCommandsHang))
	m.checkCommandHangs("server list", simdriver.MPSCommandsHang, m.dir)
	must(t, simdriver.SetMPSFault(filepath.Join(m.dir, "a"), simdriver.MPSTerminateHangs))
	m.checkCommandHangs("client terminate "+strconv.Itoa(client.cmd.Process.Pid), simdriver.MPSTerminateHangs, filepath.Join(m.dir, "a"))
	m.awaitFailure(client, cudaTerminated)

	must(t, simdriver.SetMPSFault(filepath.Join(m.dir, "a"), simdriver.MPSWedged))
	m.run("server delete a --force") // ends its faults
	m.run("server create a")
	m.probe("a").want("cuinit", "0")

	must(t, simdriver.SetMPSFault(m.dir, simdriver.MPSServerVanishes))
	m.run("server create c")
	m.await("end of the server", func() bool { return !exists(filepath.Join(m.dir, "c")) })
	m.fails("server get c status", "Server 'c' does not exist")
}

// hangTime is how long a test observes that something hangs.
const hangTime = 100 * time.Millisecond

// checkHangs checks that a program has not become a client after hangTime.
func (m *mps) checkHangs(p *probe) {
	m.t.Helper()
	time.Sleep(hangTime)
	list := m.run("client list --all --format=csv,noheader")
	if strings.Contains("\n"+list, fmt.Sprintf("\n%d,", p.cmd.Process.Pid)) {
		m.t.Errorf("a program that should hang is a client:\n%s", list)
	}
}

// checkCommandHangs checks that a command hangs until a fault ends.
func (m *mps) checkCommandHangs(line string, f simdriver.MPSFault, dir string) {
	m.t.Helper()
	cmd := m.command(strings.Fields(line)...)
	must(m.t, cmd.Start())
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	select {
	case err := <-ended:
		m.t.Fatalf("%s ends with %v, want it to hang", line, err)
	case <-time.After(hangTime):
	}
	must(m.t, simdriver.ClearMPSFault(dir, f))
	if err := <-ended; err != nil {
		m.t.Errorf("%s fails when the fault ends: %v", line, err)
	}
}
