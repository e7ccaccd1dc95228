package mps

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/gpucdi/gpucdi/internal/host"
)

const gpu = "GPU-ab-cd"

// fakeDaemon is a control daemon that keeps its state in memory, and creates the sockets of servers and namespaces as
// files.
type fakeDaemon struct {
	*testing.T
	dir      string
	socket   *net.UnixListener
	servers  map[string]map[string]string // percentages by server and namespace
	clients  map[string]bool              // namespaces with clients: "server/namespace"
	commands []string                     // that change something

	pid     int    // of all servers
	dead    bool   // the servers have died
	vanish  bool   // servers end right after their creation
	ignored bool   // percentages are not stored
	format  string // of percentages
}

func newControl(t *testing.T) (*Control, *fakeDaemon) {
	t.Helper()
	dir, err := os.MkdirTemp("/tmp", "mps") // short, for socket paths
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	d := &fakeDaemon{T: t, dir: dir, servers: map[string]map[string]string{}, clients: map[string]bool{}, format: "%s.00"}
	d.socket, err = net.ListenUnix("unix", &net.UnixAddr{Name: filepath.Join(dir, socketName)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = d.socket.Close() })
	return &Control{Dir: dir, run: d.run}, d
}

// create creates the socket of a server or a namespace.
func (d *fakeDaemon) create(names ...string) {
	dir := filepath.Join(append([]string{d.dir}, names...)...)
	err := os.MkdirAll(dir, 0o755)
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, socketName), nil, 0o600)
	}
	if err != nil {
		d.Fatal(err)
	}
}

func (d *fakeDaemon) run(_ context.Context, _ string, args ...string) (string, error) {
	flags := map[string]string{}
	var words []string
	for _, arg := range args {
		if name, value, found := strings.Cut(strings.TrimPrefix(arg, "--"), "="); found {
			flags[name] = value
		} else {
			words = append(words, arg)
		}
	}
	command := strings.Join(words[:2], " ")
	if !strings.HasSuffix(command, "list") && !strings.HasSuffix(command, "get") {
		d.commands = append(d.commands, strings.Join(args, " "))
	}
	server := flags["server"]
	if d.servers[server] == nil && server != "" {
		return "", fmt.Errorf("no server %s", server)
	}
	switch percentage := flags["active-thread-percentage"]; command {
	case "server list":
		var lines []string
		for name := range d.servers {
			status := "Ready"
			if d.dead {
				status = statusFault
			}
			lines = append(lines, fmt.Sprintf("%s,0,%d,%s,%s,%s,-\n", name, d.pid, status, filepath.Join(d.dir, name), gpu))
		}
		return strings.Join(lines, ""), nil
	case "server create":
		if flags["allowed-devices"] == "" {
			d.Errorf("a server of all GPUs: %v", args)
		}
		if !d.vanish {
			d.servers[words[2]] = map[string]string{"default": "100"}
			d.create(words[2], "default")
		}
	case "server set":
		if !d.vanish {
			d.servers[words[2]]["default"] = percentage
		}
	case "server delete":
		delete(d.servers, words[2])
		d.dead = false
	case "namespace list":
		var lines []string
		for name, percentage := range d.servers[server] {
			lines = append(lines, name+","+server+",Ready,-,"+percentage+",0,"+filepath.Join(d.dir, server, name)+"\n")
		}
		return strings.Join(lines, ""), nil
	case "namespace create":
		d.servers[server][words[2]] = "100"
		d.create(server, words[2])
	case "namespace set":
		if d.clients[server+"/"+words[2]] {
			return "", errors.New("namespace has active clients")
		}
		if !d.ignored {
			d.servers[server][words[2]] = percentage
		}
	case "namespace get":
		return fmt.Sprintf(d.format, d.servers[words[3]][words[2]]) + "\n", nil
	case "namespace delete":
		if d.clients[server+"/"+words[2]] && !slices.Contains(words, "--force") {
			return "", errors.New("namespace has active clients")
		}
		delete(d.servers[server], words[2])
	default:
		return "", fmt.Errorf("unknown command %v", args)
	}
	return "", nil
}

// did checks the commands that changed something since the last call.
func (d *fakeDaemon) did(want ...string) {
	d.Helper()
	if !slices.Equal(d.commands, want) {
		d.Errorf("commands %q, want %q", d.commands, want)
	}
	d.commands = nil
}

func TestEnsure(t *testing.T) {
	c, d := newControl(t)
	a, b := Share{gpu, "a", 25}, Share{gpu, "b", 50}
	for range 2 {
		if err := c.Ensure(t.Context(), a); err != nil {
			t.Fatal(err)
		}
	}
	d.did("server create gpu_ab_cd --allowed-devices=GPU-ab-cd", "server set gpu_ab_cd --active-thread-percentage=1",
		"namespace create a --server=gpu_ab_cd", "namespace set a --server=gpu_ab_cd --active-thread-percentage=25")
	if err := c.Ensure(t.Context(), b); err != nil {
		t.Fatal(err)
	}
	d.did("namespace create b --server=gpu_ab_cd", "namespace set b --server=gpu_ab_cd --active-thread-percentage=50")
	if got := d.servers["gpu_ab_cd"]; len(got) != 3 || got["a"] != "25" || got["b"] != "50" || got["default"] != "1" {
		t.Errorf("percentages %v", got)
	}
	if got, want := c.Directory(a), filepath.Join(d.dir, "gpu_ab_cd", "a"); got != want {
		t.Errorf("directory %s, want %s", got, want)
	}
	d.format = "%s" // as older versions report it
	if err := c.Ensure(t.Context(), a); err != nil {
		t.Error(err)
	}
	// An earlier call was interrupted before it set the percentages.
	d.servers["gpu_ab_cd"]["a"] = "100"
	d.servers["gpu_ab_cd"]["default"] = "100"
	if err := c.Ensure(t.Context(), a); err != nil || d.servers["gpu_ab_cd"]["a"] != "25" || d.servers["gpu_ab_cd"]["default"] != "1" {
		t.Errorf("error %v, percentages %v", err, d.servers)
	}
	names, err := c.Namespaces(t.Context(), gpu)
	if slices.Sort(names); err != nil || !slices.Equal(names, []string{"a", "b"}) {
		t.Errorf("namespaces %v, error %v", names, err)
	}
	d.commands = nil
	if err := c.EnsureServer(t.Context(), gpu); err != nil {
		t.Error(err)
	}
	d.did()
}

// A server that has died is listed, but does not serve.
func TestDeadServerReplaced(t *testing.T) {
	c, d := newControl(t)
	share := Share{gpu, "a", 25}
	for _, ensure := range []func() error{
		func() error { return c.Ensure(t.Context(), share) },
		func() error { return c.EnsureServer(t.Context(), gpu) },
	} {
		if err := c.Ensure(t.Context(), share); err != nil {
			t.Fatal(err)
		}
		d.dead, d.commands = true, nil
		if err := ensure(); err != nil {
			t.Error(err)
		}
		if d.dead || len(d.commands) < 2 || d.commands[0] != "server delete gpu_ab_cd --force" || !strings.HasPrefix(d.commands[1], "server create gpu_ab_cd") {
			t.Errorf("commands %q", d.commands)
		}
	}
}

func TestEnsureFails(t *testing.T) {
	share := Share{gpu, "a", 25}
	for want, change := range map[string]func(c *Control, d *fakeDaemon){
		"the server has ended":                        func(_ *Control, d *fakeDaemon) { d.vanish = true },
		"reports 100 % after 25 % was set":            func(_ *Control, d *fakeDaemon) { d.ignored = true },
		"parsing the percentage":                      func(_ *Control, d *fakeDaemon) { d.format = "x%s" },
		"the MPS daemon does not run":                 func(c *Control, _ *fakeDaemon) { c.Dir = "/nonexistent" },
		"bytes, more than the maximum of 107":         func(c *Control, _ *fakeDaemon) { c.Dir = "/" + strings.Repeat("x", 90) },
		"creating MPS namespace a of GPU-ab-cd: stat": func(c *Control, d *fakeDaemon) { c.run = withoutSockets(d) },
	} {
		c, d := newControl(t)
		change(c, d)
		if err := c.Ensure(t.Context(), share); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want %s", err, want)
		}
	}
}

// withoutSockets returns a runner like d.run that removes the socket of each new namespace.
func withoutSockets(d *fakeDaemon) runner {
	return func(ctx context.Context, dir string, args ...string) (string, error) {
		out, err := d.run(ctx, dir, args...)
		if args[0] == "namespace" && args[1] == "create" {
			_ = os.RemoveAll(filepath.Join(d.dir, "gpu_ab_cd", args[2]))
		}
		return out, err
	}
}

func TestRemove(t *testing.T) {
	c, d := newControl(t)
	share := Share{gpu, "a", 25}
	if err := c.Remove(t.Context(), share); err != nil {
		t.Error(err)
	}
	d.did()
	for name, clients := range map[string]bool{"without clients": false, "with clients": true} {
		clear(d.clients)
		if err := c.Ensure(t.Context(), share); err != nil {
			t.Fatal(err)
		}
		d.commands = nil
		d.clients["gpu_ab_cd/a"] = clients
		for range 2 {
			if err := c.Remove(t.Context(), share); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}
		if _, left := d.servers["gpu_ab_cd"]["a"]; left || len(d.commands) != 1+btoi(clients) {
			t.Errorf("%s: left %t, commands %q", name, left, d.commands)
		}
	}
	for range 2 {
		if err := c.RemoveServer(t.Context(), gpu); err != nil || len(d.servers) > 0 {
			t.Errorf("error %v, servers %v", err, d.servers)
		}
	}
	d.socket.Close()
	if err := errors.Join(c.Remove(t.Context(), share), c.RemoveServer(t.Context(), gpu)); err != nil {
		t.Errorf("without a daemon: %v", err)
	}
}

// A daemon that was killed leaves its socket behind. A daemon that runs can fail, too.
func TestNotRunning(t *testing.T) {
	c, d := newControl(t)
	c.run = func(context.Context, string, ...string) (string, error) { return "", errors.New("no response") }
	if _, err := c.Served(t.Context(), []string{gpu}); err == nil || errors.Is(err, ErrNotRunning) {
		t.Errorf("error %v of a daemon that runs", err)
	}
	d.socket.SetUnlinkOnClose(false)
	d.socket.Close()
	if _, err := c.Served(t.Context(), []string{gpu}); !errors.Is(err, ErrNotRunning) {
		t.Errorf("error %v of a daemon that was killed", err)
	}
}

// A command whose program cannot be killed returns when its context ends. It fails until the program has exited; other
// commands do not.
func TestCommandHangs(t *testing.T) {
	c, d := newControl(t)
	ctx, cancel := context.WithCancelCause(t.Context())
	defer cancel(nil)
	end := make(chan struct{})
	c.run = func(ctx context.Context, dir string, args ...string) (string, error) {
		if args[0] == "server" {
			cancel(errors.New("no response"))
			<-end
		}
		return d.run(ctx, dir, args...)
	}
	const want = "waiting for nvidia-cuda-mps-control server list --format=csv,noheader: no response"
	if _, err := c.Served(ctx, []string{gpu}); err == nil || err.Error() != want {
		t.Errorf("error %v, want %s", err, want)
	}
	if _, err := c.Served(t.Context(), []string{gpu}); !errors.Is(err, host.ErrNotExited) {
		t.Errorf("error %v while the program has not exited", err)
	}
	if _, err := c.command(t.Context(), "namespace", "list"); err != nil {
		t.Errorf("another command: %v", err)
	}
	close(end)
	for start := time.Now(); ; time.Sleep(time.Millisecond) {
		if _, err := c.Served(t.Context(), []string{gpu}); err == nil {
			break
		} else if time.Since(start) > 30*time.Second {
			t.Fatal(err)
		}
	}
}

// As long as the process of an earlier call to CUDA has not exited, Probe starts no other one for the GPU.
func TestProbeHangs(t *testing.T) {
	root := t.TempDir()
	worker := filepath.Join(root, "worker")
	files := map[string]string{worker: "#!/bin/sh\necho $CUDA_MPS_PIPE_DIRECTORY; exit 1\n"}
	for _, arch := range []string{"x86_64", "aarch64"} {
		for _, name := range []string{"libnvidia-ml.so.1", "libcuda.so.1"} {
			files[filepath.Join(root, "usr/lib", arch+"-linux-gnu", name)] = ""
		}
	}
	for name, text := range files {
		if err := errors.Join(os.MkdirAll(filepath.Dir(name), 0o755), os.WriteFile(name, []byte(text), 0o755)); err != nil {
			t.Fatal(err)
		}
	}
	c := &Control{Program: Program{Node: host.NewRoot(root)}, Dir: "/mps"}
	ctx, cancel := context.WithCancelCause(t.Context())
	defer cancel(nil)
	end := make(chan struct{})
	defer close(end)
	_ = c.probes.Do(ctx, gpu, func() error { cancel(errors.New("no response")); <-end; return nil })
	if err := c.Probe(t.Context(), worker, gpu); !errors.Is(err, host.ErrNotExited) {
		t.Errorf("error %v while the earlier process has not exited", err)
	}
	if err := c.Probe(t.Context(), worker, "GPU-other"); err == nil || err.Error() != "exit status 1: /mps/gpu_other" {
		t.Errorf("error %v for another GPU", err)
	}
	if err := c.Probe(ctx, worker, "GPU-other"); err == nil || err.Error() != "no response" {
		t.Errorf("error %v after the end of the context", err)
	}
}

// The starts and ends of the daemon and of servers are events, other changes are not.
func TestWatch(t *testing.T) {
	c, d := newControl(t)
	changed := make(chan struct{}, 1)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { defer close(ended); c.Watch(ctx, changed, slog.New(slog.DiscardHandler)) }()
	defer func() { cancel(); <-ended }()
	<-changed // the watch has started
	for _, name := range []string{logDir, lockName, "nvidia-cuda-mps-control.pid"} {
		if err := os.Mkdir(filepath.Join(d.dir, name), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	select {
	case <-changed:
		t.Error("an event of an irrelevant file")
	case <-time.After(100 * time.Millisecond):
	}
	d.create("gpu_ab_cd")
	<-changed
	d.socket.Close()
	<-changed
}

// A killed daemon leaves its socket behind. Its end is an event nevertheless.
func TestWatchKilledDaemon(t *testing.T) {
	const listens = "GPUCDI_TEST_LISTEN"
	if socket := os.Getenv(listens); socket != "" {
		if _, err := net.Listen("unix", socket); err != nil {
			t.Fatal(err)
		}
		fmt.Println("listening")
		select {}
	}
	c := &Control{Dir: t.TempDir()}
	daemon := exec.CommandContext(t.Context(), os.Args[0], "-test.run", "TestWatchKilledDaemon")
	daemon.Env = append(os.Environ(), listens+"="+filepath.Join(c.Dir, socketName))
	out, err := daemon.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := daemon.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = daemon.Wait() }()
	if _, err := out.Read(make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	changed := make(chan struct{}, 1)
	ctx, cancel := context.WithCancel(t.Context())
	var watch sync.WaitGroup
	watch.Go(func() { c.watchExit(ctx, changed) })
	for pidfds(t) == 0 {
		time.Sleep(time.Millisecond)
	}
	select {
	case <-changed:
		t.Error("an event while the daemon runs")
	case <-time.After(100 * time.Millisecond):
	}
	if err := daemon.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	<-changed
	cancel()
	watch.Wait()
	if err := awaitExit(t.Context(), filepath.Join(c.Dir, socketName)); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("error %v without a daemon", err)
	}
}

// The end of a killed server is an event, although the daemon still lists the server.
func TestWatchKilledServer(t *testing.T) {
	c, d := newControl(t)
	server := exec.CommandContext(t.Context(), "sleep", "infinity")
	if err := server.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = server.Wait() }()
	d.pid, d.servers["gpu_ab_cd"] = server.Process.Pid, map[string]string{}
	changed := make(chan struct{}, 1)
	ctx, cancel := context.WithCancel(t.Context())
	var watch sync.WaitGroup
	watch.Go(func() { c.Watch(ctx, changed, slog.New(slog.DiscardHandler)) })
	defer func() { cancel(); watch.Wait() }()
	<-changed
	for pidfds(t) < 2 { // of the daemon, which is this process, and of the server
		time.Sleep(time.Millisecond)
	}
	select {
	case <-changed:
		t.Error("an event while the server runs")
	case <-time.After(100 * time.Millisecond):
	}
	if err := server.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	<-changed
}

// pidfds returns the number of file descriptors of this process that refer to processes.
func pidfds(t *testing.T) (n int) {
	t.Helper()
	files, err := filepath.Glob("/proc/self/fd/*")
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		target, _ := os.Readlink(f)
		if strings.Contains(target, "pidfd") {
			n++
		}
	}
	return n
}

func btoi(b bool) int {
	if b {
		return 1
	}
	return 0
}

func TestName(t *testing.T) {
	if got, err := Name("0AB1-c"); err != nil || got != "0ab1_c" {
		t.Errorf("%q, error %v", got, err)
	}
	for _, uid := range []string{"", "a/b", "a b", strings.Repeat("a", 65)} {
		if got, err := Name(uid); err == nil {
			t.Errorf("%q: %q", uid, got)
		}
	}
}
