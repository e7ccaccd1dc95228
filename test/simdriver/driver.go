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

// Driver is a simulated driver installed below a root. Its methods can be called
// concurrently. Each returns when the change is visible.
type Driver struct {
	files   kernel
	symbols []string // exported by the library
	unlock  func()   // nil for a driver that this process has installed

	mu    sync.Mutex
	state State
}

// Install writes a driver and its GPUs below root and loads it. The root may be
// an empty directory, or the root of a mount namespace (/proc/<pid>/root). Install
// replaces files, and keeps the lines of other drivers in proc/devices. In a
// namespace, proc/driver must be writable (a tmpfs) and proc/devices a regular
// file; nothing is written to a real sysfs.
//
// Compiled objects are cached in the user's cache directory; see Installer.
func Install(root string, p Profile) (*Driver, error) {
	return Installer{}.Install(root, p)
}

// Installer installs drivers from compiled objects in Cache; empty: gpucdi in the
// user's cache directory.
type Installer struct{ Cache string }

// Install is like the function Install, with the cache of i.
func (i Installer) Install(root string, p Profile) (*Driver, error) {
	d, err := i.driver(root)
	if err != nil {
		return nil, err
	}
	d.state = (&State{Version: p.Version, CUDA: p.CUDA, GPUs: p.GPUs}).clone()
	if err := d.files.install(p.Version, encode(&d.state, p.Version)); err != nil {
		return nil, fmt.Errorf("installing the simulated driver %s below %s: %w", p.Version, root, err)
	}
	return d, d.Update(func(*State) error { return nil })
}

// driver returns a driver without state.
func (i Installer) driver(root string) (*Driver, error) {
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
	d.symbols, err = exported(filepath.Join(objects, "libnvidia-ml"))
	return d, err
}

// exported returns the names of the symbols that a library exports.
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

// State returns a copy of the current state.
func (d *Driver) State() State {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.state.clone()
}

// Update changes the state and updates proc, sys and dev. Files are created
// before the library reports a GPU, and removed after it no longer does. If
// change returns an error or the new state is invalid, nothing changes.
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
	if err := d.files.save(&next); err != nil {
		return err
	}
	return d.apply(next)
}

// apply updates the files of the kernel module and the library to a saved state.
func (d *Driver) apply(next State) error {
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
			return fmt.Errorf("injecting a fault into %s: no such function in the simulated library", f.Func)
		}
	}
	return s.check()
}

// LibraryPath returns the path of the libnvidia-ml file, which contains the state.
func (d *Driver) LibraryPath() string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.files.library(d.state.Version)
}

// RemoveFunctions removes functions from the library, as in an older driver. No
// process may have loaded the library.
func (d *Driver) RemoveFunctions(functions ...string) error {
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
		// The first occurrence of the name is in .dynstr. Changing it hides the symbol, which is looked up by hash.
		at := bytes.Index(library, []byte("\x00"+function+"\x00"))
		if at < 0 {
			return errors.Join(fmt.Errorf("removing %s: no such function in the simulated library", function), file.Close())
		}
		if _, err := file.WriteAt([]byte("-"), int64(at)+1); err != nil {
			return errors.Join(fmt.Errorf("removing %s: %w", function, err), file.Close())
		}
	}
	return file.Close()
}

// Env returns the environment for a process outside of the root: the process uses
// the root's device nodes, and counts its NVML calls in a file ("": no counting).
func (d *Driver) Env(calls string) []string {
	env := []string{"NVSIM_DEV=" + d.files.path("dev")}
	if calls != "" {
		env = append(env, "NVSIM_CALLS="+calls)
	}
	return env
}

// Command returns a command that runs a program of the driver, such as
// nvidia-smi, outside of the root with the root's libraries and device nodes.
func (d *Driver) Command(name string, args ...string) *exec.Cmd {
	cmd := exec.Command(d.files.path("usr/bin", name), args...) //nolint:noctx // the caller starts and ends it
	cmd.Env = append(os.Environ(), d.Env("")...)
	cmd.Env = append(cmd.Env, "LD_LIBRARY_PATH="+d.files.path(LibraryDir))
	return cmd
}
