package simdriver

import (
	"fmt"
	"slices"
)

// xidFellOff is the XID of a GPU that has fallen off the bus.
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

// RaiseXID reports a critical XID error of the whole GPU.
func (d *Driver) RaiseXID(uuid string, xid int) error {
	return d.onGPU(uuid, func(s *State, _ *GPU) error {
		s.Raise(Event{GPU: uuid, Type: EventXID, Data: xid, GI: NotSupported, CI: NotSupported})
		return nil
	})
}

// Lose lets the GPU fall off the bus: XID 79, then every call of it fails. Its
// device node and PCI device stay, as they do.
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

// Add plugs a GPU in. The enumeration order is by bus id, as NVML's is.
func (d *Driver) Add(g GPU) error {
	return d.Update(func(s *State) error {
		s.GPUs = append(s.GPUs, g)
		slices.SortFunc(s.GPUs, func(a, b GPU) int { return slices.Compare([]byte(a.BusID), []byte(b.BusID)) })
		return nil
	})
}

// Remove takes a GPU out of the machine, and returns it for a later Add.
func (d *Driver) Remove(uuid string) (removed GPU, err error) {
	err = d.onGPU(uuid, func(s *State, g *GPU) error {
		removed = *g
		s.GPUs = slices.DeleteFunc(s.GPUs, func(other GPU) bool { return other.UUID == uuid })
		return nil
	})
	return removed, err
}

// Partition puts a GPU into MIG mode and cuts it anew: "3g.20gb", or
// "1c.3g.20gb" for a smaller compute instance in it. No profile leaves it uncut.
func (d *Driver) Partition(uuid string, profiles ...string) error {
	return d.onGPU(uuid, func(_ *State, g *GPU) error { return partition(g, profiles) })
}

// Unpartition takes a GPU out of MIG mode.
func (d *Driver) Unpartition(uuid string) error {
	return d.onGPU(uuid, func(_ *State, g *GPU) error {
		if g.MIGMode == NotSupported {
			return fmt.Errorf("%s has no MIG", g.Name)
		}
		g.MIGMode, g.MIGPending, g.MIG = 0, 0, nil
		return nil
	})
}

// Break adds a fault; Update with an empty Faults mends everything.
func (d *Driver) Break(f Fault) error {
	return d.Update(func(s *State) error {
		s.Faults = append(s.Faults, f)
		return nil
	})
}

// Mend takes all faults back.
func (d *Driver) Mend() error {
	return d.Update(func(s *State) error {
		s.Faults = nil
		return nil
	})
}

// Unload takes the kernel module away: device nodes and /proc entries go, the
// libraries stay and answer NVML_ERROR_DRIVER_NOT_LOADED.
func (d *Driver) Unload() error {
	return d.Update(func(s *State) error {
		s.Unloaded = true
		return nil
	})
}

// Load loads the kernel module again.
func (d *Driver) Load() error {
	return d.Update(func(s *State) error {
		s.Unloaded = false
		return nil
	})
}

// Upgrade installs another version and loads its kernel module. Programs that
// have the old library loaded get NVML_ERROR_LIB_RM_VERSION_MISMATCH from it;
// its files are gone.
func (d *Driver) Upgrade(version string) error {
	before := d.State()
	if before.Version == version {
		return nil
	}
	after := before.clone()
	after.Version, after.Unloaded = version, false
	if err := writeSlot(d.LibraryPath(), encode(&after, before.Version)); err != nil {
		return err
	}
	if err := d.files.install(version, encode(&after, version)); err != nil {
		return fmt.Errorf("upgrading the simulated driver to %s: %w", version, err)
	}
	if err := d.Update(func(s *State) error { *s = after; return nil }); err != nil {
		return err
	}
	return d.files.remove(before.Version, false)
}

// Uninstall unloads the driver and removes its files; nothing can be done with
// it afterwards.
func (d *Driver) Uninstall() error {
	if err := d.Unload(); err != nil {
		return err
	}
	return d.files.remove(d.State().Version, true)
}
