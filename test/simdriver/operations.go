package simdriver

import (
	"errors"
	"fmt"
	"io/fs"
	"slices"
)

// xidFellOff is the XID "GPU has fallen off the bus".
const xidFellOff = 79

// onGPU updates one GPU.
func (d *Driver) onGPU(uuid string, change func(*State, *GPU) error) error {
	return d.Update(func(s *State) error {
		g := s.GPU(uuid)
		if g == nil {
			return fmt.Errorf("the simulated driver has no GPU %s", uuid)
		}
		return change(s, g)
	})
}

// RaiseXID raises a critical XID error of the whole GPU.
func (d *Driver) RaiseXID(uuid string, xid int) error {
	return d.onGPU(uuid, func(s *State, _ *GPU) error {
		s.Raise(Event{GPU: uuid, Type: EventXID, Data: xid, GI: NotSupported, CI: NotSupported})
		return nil
	})
}

// Lose makes the GPU fall off the bus: XID 79, then every call for it fails. Its
// device node and PCI device stay, as with a real driver.
func (d *Driver) Lose(uuid string) error {
	return d.onGPU(uuid, func(s *State, g *GPU) error {
		g.Lost = true
		s.Raise(Event{GPU: uuid, Type: EventXID, Data: xidFellOff, GI: NotSupported, CI: NotSupported})
		return nil
	})
}

// Return brings a lost GPU back.
func (d *Driver) Return(uuid string) error {
	return d.onGPU(uuid, func(_ *State, g *GPU) error {
		g.Lost = false
		return nil
	})
}

// Add adds a GPU. GPUs are enumerated by PCI bus ID, as by NVML.
func (d *Driver) Add(g GPU) error {
	return d.Update(func(s *State) error {
		s.GPUs = append(s.GPUs, g)
		slices.SortFunc(s.GPUs, func(a, b GPU) int { return slices.Compare([]byte(a.BusID), []byte(b.BusID)) })
		return nil
	})
}

// Remove removes a GPU, and returns it for a later Add.
func (d *Driver) Remove(uuid string) (removed GPU, err error) {
	err = d.onGPU(uuid, func(s *State, g *GPU) error {
		removed = *g
		s.GPUs = slices.DeleteFunc(s.GPUs, func(other GPU) bool { return other.UUID == uuid })
		return nil
	})
	return removed, err
}

// Partition enables MIG mode and repartitions a GPU by profiles: "3g.20gb", or
// "1c.3g.20gb" for a smaller compute instance. Without profiles it has no MIG devices.
func (d *Driver) Partition(uuid string, profiles ...string) error {
	return d.onGPU(uuid, func(_ *State, g *GPU) error { return partition(g, profiles) })
}

// Unpartition disables the MIG mode of a GPU.
func (d *Driver) Unpartition(uuid string) error {
	return d.onGPU(uuid, func(_ *State, g *GPU) error {
		if g.MIGMode == NotSupported {
			return fmt.Errorf("%s does not support MIG", g.Name)
		}
		g.MIGMode, g.MIGPending, g.MIG = 0, 0, nil
		return nil
	})
}

// InjectFault adds a fault. ClearFaults removes it.
func (d *Driver) InjectFault(f Fault) error {
	return d.Update(func(s *State) error {
		s.Faults = append(s.Faults, f)
		return nil
	})
}

// ClearFaults removes all faults.
func (d *Driver) ClearFaults() error {
	return d.Update(func(s *State) error {
		s.Faults = nil
		return nil
	})
}

// Unload unloads the kernel module: it removes device nodes, entries in /proc and
// /sys/module, memory limits, compute modes and time slices. The libraries stay, and return NVML_ERROR_DRIVER_NOT_LOADED.
func (d *Driver) Unload() error {
	err := d.Update(func(s *State) error {
		s.Unloaded = true
		return nil
	})
	if err != nil {
		return err
	}
	return resetSettings(d.LibraryPath())
}

// Load loads the kernel module again.
func (d *Driver) Load() error {
	return d.Update(func(s *State) error {
		s.Unloaded = false
		return nil
	})
}

// Upgrade installs another version, loads its kernel module, and removes the
// files of the old version. The old library returns
// NVML_ERROR_LIB_RM_VERSION_MISMATCH to programs that have loaded it.
func (d *Driver) Upgrade(version string) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.state.Version == version {
		return nil
	}
	next := d.state.clone()
	next.Version, next.Unloaded, next.Replaces = version, false, d.state.Version
	if err := d.files.save(&next); err != nil {
		return err
	}
	return d.upgrade(next)
}

// upgrade performs or completes the upgrade to a saved state.
func (d *Driver) upgrade(next State) error {
	old := next.Replaces
	err := writeSlot(d.files.library(old), encode(&next, old))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := d.files.install(next.Version, encode(&next, next.Version)); err != nil {
		return fmt.Errorf("upgrading the simulated driver to %s: %w", next.Version, err)
	}
	if err := d.apply(next); err != nil {
		return err
	}
	if err := d.files.remove(old, false); err != nil {
		return err
	}
	d.state.Replaces = ""
	return d.files.save(&d.state)
}

// Uninstall unloads the driver and removes its files. The Driver cannot be used afterwards.
func (d *Driver) Uninstall() error {
	if err := d.Unload(); err != nil {
		return err
	}
	return d.files.remove(d.State().Version, true)
}
