// Package spec is what the owner of a box and the processes of boxinit tell each other.
package spec

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
)

// Spec describes one box. It lies in the state directory as box.json.
type Spec struct {
	// ID names the box's cgroups.
	ID string
	// Dir is the state directory: an absolute path.
	Dir string
	// Hostname inside.
	Hostname string
	// Simulated asks for plain files where the kernel's would refuse a simulated driver.
	Simulated bool
	// Keep lets the box outlive whoever started it.
	Keep bool
	// Binds are directories of the machine, and where the box sees them.
	Binds map[string]string `json:",omitempty"`
	// Init is PID 1 of the box as the machine counts it: 0 until the box is up.
	Init int
	// Keeper is the process that takes the box away when it is sent SIGTERM.
	Keeper int
	// Cgroups are the box's own directories, one in each hierarchy, as the machine sees them.
	Cgroups []Cgroup
}

// Cgroup is the box's directory in one hierarchy.
type Cgroup struct {
	// Controllers as /proc/self/cgroup writes them: "cpu,cpuacct", "name=systemd", "" for v2.
	Controllers string
	Path        string
}

// File is the name of the spec in a state directory.
const File = "box.json"

// Leaf is the cgroup below the box's own that its processes live in: cgroup v2 lets no
// process sit beside children that have controllers.
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

// Write puts the spec into its state directory.
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
