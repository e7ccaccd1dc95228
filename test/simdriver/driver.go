package simdriver

import (
	"bytes"
	"debug/elf"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sync"
)

// Driver is a simulated driver that is installed below a root. Its methods may
// be called from any goroutine; each returns when the change is visible.
type Driver struct {
	files   kernel
	symbols []string // what the library exports

	mu    sync.Mutex
	state State
}

// Install writes a driver and its GPUs below root and loads it. The root may
// be an empty directory, or that of a running namespace (/proc/<pid>/root):
// files are replaced, and proc/devices keeps the lines of other drivers. There,
// proc/driver must be something that can be written (a tmpfs), proc/devices a
// regular file mounted over the kernel's; of sys, only what is not the kernel's
// own is written.
//
// Compiled objects are kept in the user's cache directory; see Installer.
func Install(root string, p Profile) (*Driver, error) {
	return Installer{}.Install(root, p)
}

// Installer is where compiled objects are kept: Cache, or gpucdi in the user's
// cache directory.
type Installer struct{ Cache string }

// Install does what the function Install does.
func (i Installer) Install(root string, p Profile) (*Driver, error) {
	if i.Cache == "" {
		dir, err := os.UserCacheDir()
		if err != nil {
			return nil, err
		}
		i.Cache = filepath.Join(dir, "gpucdi")
	}
	objects, err := build(i.Cache)
	if err != nil {
		return nil, err
	}
	d := &Driver{files: kernel{tree{root, objects}}}
	if err := d.files.checkLinks(); err != nil {
		return nil, err
	}
	if d.symbols, err = exported(filepath.Join(objects, "libnvidia-ml")); err != nil {
		return nil, err
	}
	d.state = (&State{Version: p.Version, CUDA: p.CUDA, GPUs: p.GPUs}).clone()
	if err := d.files.install(p.Version, encode(&d.state, p.Version)); err != nil {
		return nil, fmt.Errorf("installing the simulated driver %s below %s: %w", p.Version, root, err)
	}
	return d, d.Update(func(*State) error { return nil })
}

func exported(library string) ([]string, error) {
	f, err := elf.Open(library)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	symbols, err := f.DynamicSymbols()
	if err != nil {
		return nil, err
	}
	var names []string
	for _, s := range symbols {
		if s.Section != elf.SHN_UNDEF {
			names = append(names, s.Name)
		}
	}
	return names, nil
}

// State returns a copy of the present state.
func (d *Driver) State() State {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.state.clone()
}

// Update changes the state and brings proc, sys and dev in step: what appears
// is there before the library tells of it, what disappears goes after. When
// change returns an error, nothing changes.
func (d *Driver) Update(change func(*State) error) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	next := d.state.clone()
	if err := change(&next); err != nil {
		return err
	}
	if err := d.check(&next); err != nil {
		return err
	}
	if err := d.files.show(&next); err != nil {
		return err
	}
	if err := writeSlot(d.files.library(next.Version), encode(&next, next.Version)); err != nil {
		return err
	}
	d.state = next
	return d.files.hide(&next)
}

func (d *Driver) check(s *State) error {
	for _, f := range s.Faults {
		if f.Func != "" && !slices.Contains(d.symbols, f.Func) {
			return fmt.Errorf("fault of %s: the simulated library has no such function", f.Func)
		}
	}
	return s.check()
}

// LibraryPath is the libnvidia-ml file that holds the state.
func (d *Driver) LibraryPath() string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.files.library(d.state.Version)
}

// Unlearn makes the library that of a driver which does not have some functions yet. No
// process may have loaded it.
func (d *Driver) Unlearn(functions ...string) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	path := d.files.library(d.state.Version)
	library, err := os.ReadFile(path)
	if err != nil {
		return fmt.Errorf("reading the simulated library: %w", err)
	}
	file, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		return fmt.Errorf("changing the simulated library: %w", err)
	}
	for _, function := range functions {
		// Where the name comes first it is that of the dynamic symbol, which is found by its hash.
		at := bytes.Index(library, []byte("\x00"+function+"\x00"))
		if at < 0 {
			return errors.Join(fmt.Errorf("unlearning %s: the simulated library has no such function", function), file.Close())
		}
		if _, err := file.WriteAt([]byte("-"), int64(at)+1); err != nil {
			return errors.Join(fmt.Errorf("unlearning %s: %w", function, err), file.Close())
		}
	}
	return file.Close()
}

// Env is what a process outside of the root needs in its environment to see
// the root's device nodes, and to count its calls in a file ("" counts none).
func (d *Driver) Env(calls string) []string {
	env := []string{"NVSIM_DEV=" + d.files.path("dev")}
	if calls != "" {
		env = append(env, "NVSIM_CALLS="+calls)
	}
	return env
}

// Command is a program of the driver, such as nvidia-smi, run outside of the
// root with the root's libraries and device nodes.
func (d *Driver) Command(name string, args ...string) *exec.Cmd {
	cmd := exec.Command(d.files.path("usr/bin", name), args...) //nolint:noctx // the caller starts and ends it
	cmd.Env = append(os.Environ(), d.Env("")...)
	cmd.Env = append(cmd.Env, "LD_LIBRARY_PATH="+d.files.path(LibraryDir))
	return cmd
}
