// Package spec defines the description of a box, shared by its owner and the boxinit processes.
package spec

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
)

// Spec describes a box. It is stored as box.json in the state directory.
type Spec struct {
	// ID names the box's cgroups.
	ID string
	// Dir is the absolute path of the state directory.
	Dir string
	// Hostname is the host name in the box.
	Hostname string
	// Simulated mounts writable files for a simulated driver in /proc and /sys.
	Simulated bool
	// Keep lets the box outlive its owner.
	Keep bool
	// Binds are bind mounts: directory on the machine to directory in the box.
	Binds map[string]string `json:",omitempty"`
	// Init is the PID on the machine of the box's PID 1; 0 until the box is ready.
	Init int
	// Keeper is the PID of the keeper, which removes the box on SIGTERM.
	Keeper int
	// Cgroups are the box's cgroups, one in each hierarchy.
	Cgroups []Cgroup
}

// Cgroup is the box's cgroup in one hierarchy.
type Cgroup struct {
	// Controllers are in the format of /proc/self/cgroup: "cpu,cpuacct", "name=systemd", "" for v2.
	Controllers string
	Path        string // on the machine
}

// File is the name of the spec in a state directory.
const File = "box.json"

// Leaf is the child of the box's cgroup that contains its processes: a cgroup v2 with
// controllers enabled for its children cannot contain processes itself.
const Leaf = "init"

// Read returns the spec of the box in dir.
func Read(dir string) (*Spec, error) {
	data, err := os.ReadFile(filepath.Join(dir, File))
	if err != nil {
		return nil, fmt.Errorf("reading the box's spec: %w", err)
	}
	s := new(Spec)
	if err := json.Unmarshal(data, s); err != nil {
		return nil, fmt.Errorf("parsing the box's spec in %s: %w", dir, err)
	}
	return s, nil
}

// Write writes the spec to its state directory.
func (s *Spec) Write() error {
	data, err := json.MarshalIndent(s, "", "  ")
	if err != nil {
		return fmt.Errorf("encoding the box's spec: %w", err)
	}
	name := filepath.Join(s.Dir, File)
	if err := os.WriteFile(name+".new", data, 0o600); err != nil {
		return fmt.Errorf("writing the box's spec: %w", err)
	}
	if err := os.Rename(name+".new", name); err != nil {
		return fmt.Errorf("writing the box's spec: %w", err)
	}
	return nil
}
