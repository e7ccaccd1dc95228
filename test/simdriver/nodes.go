package simdriver

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// nvidiaMajor is the static major number of the driver's GPU and control nodes.
const nvidiaMajor = 195

// majors are the dynamic major numbers of a loaded driver, which depend on the numbers in use.
type majors struct{ uvm, caps, imex, drm int }

// card and render are the names of a GPU's DRM nodes.
func card(g GPU) string   { return fmt.Sprintf("card%d", g.Minor) }
func render(g GPU) string { return fmt.Sprintf("renderD%d", 128+g.Minor) }

func (m majors) lines() []string {
	return []string{
		fmt.Sprintf("%3d nvidia", nvidiaMajor),
		fmt.Sprintf("%3d nvidia-modeset", nvidiaMajor),
		fmt.Sprintf("%3d nvidiactl", nvidiaMajor),
		fmt.Sprintf("%3d nvidia-uvm", m.uvm),
		fmt.Sprintf("%3d nvidia-caps", m.caps),
		fmt.Sprintf("%3d nvidia-caps-imex-channels", m.imex),
	}
}

// showDevices adds the driver to proc/devices and returns its majors. It chooses
// numbers that the real kernel does not use: a container that may use them would
// otherwise get access to real devices.
func (k kernel) showDevices() (majors, error) {
	head, char, block, err := k.readDevices()
	if err != nil {
		return majors{}, err
	}
	m := majors{uvm: freeMajor(char, 511), caps: freeMajor(char, 236)}
	m.imex = freeMajor(char, m.caps-1)
	m.drm = freeMajor(char, 226) // the static major of DRM, unless a real driver uses it
	char = append(char, m.lines()...)
	slices.SortStableFunc(char, func(a, b string) int { return major(a) - major(b) })
	return m, k.writeDevices(head, char, block)
}

func (k kernel) hideDevices() error {
	head, char, block, err := k.readDevices()
	if err != nil {
		return err
	}
	return k.writeDevices(head, char, block)
}

func major(line string) (n int) {
	if _, err := fmt.Sscan(line, &n); err != nil {
		return -1
	}
	return n
}

func freeMajor(char []string, from int) int {
	for slices.ContainsFunc(char, func(line string) bool { return major(line) == from }) {
		from--
	}
	return from
}

// readDevices returns the parts of proc/devices without the lines of the driver, or
// the parts of a minimal file if it does not exist.
func (k kernel) readDevices() (head string, char []string, block string, err error) {
	head = "Character devices:"
	b, err := os.ReadFile(k.path("proc/devices"))
	if errors.Is(err, os.ErrNotExist) {
		return head, []string{"  1 mem", "  5 /dev/tty", " 10 misc"}, "\nBlock devices:\n259 blkext\n", nil
	}
	if err != nil {
		return "", nil, "", err
	}
	text, block, _ := strings.Cut(string(b), "\n\n")
	lines := bufio.NewScanner(strings.NewReader(text))
	for lines.Scan() {
		_, name, _ := strings.Cut(strings.TrimSpace(lines.Text()), " ")
		if lines.Text() != head && !strings.HasPrefix(name, "nvidia") {
			char = append(char, lines.Text())
		}
	}
	return head, char, "\n" + block, lines.Err()
}

// writeDevices writes in place, because the file can be mounted on a real /proc/devices.
func (k kernel) writeDevices(head string, char []string, block string) error {
	path := k.path("proc/devices")
	if err := mkdirs(filepath.Dir(path)); err != nil {
		return err
	}
	text := head + "\n" + strings.Join(char, "\n") + "\n" + block
	//nolint:gosec // /proc/devices is world-readable
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		return fmt.Errorf("updating the driver's majors in %s: %w", path, err)
	}
	return nil
}

func nodeNames(s *State) map[string]bool {
	names := map[string]bool{}
	for _, g := range s.GPUs {
		names[fmt.Sprintf("nvidia%d", g.Minor)] = true
	}
	return names
}

func drmNames(s *State) map[string]bool {
	names := map[string]bool{}
	for _, g := range s.GPUs {
		names[card(g)], names[render(g)] = true, true
	}
	return names
}

func capNames(s *State) map[string]bool {
	names := map[string]bool{}
	if s.Unloaded {
		return names
	}
	for _, minor := range append(capMinors(s), capsConfig, capsMonitor) {
		names[fmt.Sprintf("nvidia-cap%d", minor)] = true
	}
	return names
}

func capMinors(s *State) (minors []int) {
	for _, g := range s.GPUs {
		for _, m := range g.MIG {
			minors = append(minors, giMinor(g.Minor, m.GPUInstance), ciMinor(g.Minor, m.GPUInstance, m.CI))
		}
	}
	return minors
}

// makeNodes creates the missing device nodes of a state.
func (k kernel) makeNodes(s *State, m majors) error {
	if err := errors.Join(mkdirs(k.path("dev/nvidia-caps")), mkdirs(k.path("dev/dri"))); err != nil {
		return err
	}
	type node struct {
		name         string
		major, minor int
		mode         uint32
	}
	nodes := []node{
		{"nvidiactl", nvidiaMajor, 255, 0o666},
		{"nvidia-modeset", nvidiaMajor, 254, 0o666},
		{"nvidia-uvm", m.uvm, 0, 0o666},
		{"nvidia-uvm-tools", m.uvm, 1, 0o666},
		{fmt.Sprintf("nvidia-caps/nvidia-cap%d", capsConfig), m.caps, capsConfig, 0o400},
		{fmt.Sprintf("nvidia-caps/nvidia-cap%d", capsMonitor), m.caps, capsMonitor, 0o444},
	}
	for _, g := range s.GPUs {
		nodes = append(nodes, node{fmt.Sprintf("nvidia%d", g.Minor), nvidiaMajor, g.Minor, 0o666},
			node{"dri/" + card(g), m.drm, g.Minor, 0o660}, node{"dri/" + render(g), m.drm, 128 + g.Minor, 0o660})
	}
	for _, minor := range capMinors(s) {
		nodes = append(nodes, node{fmt.Sprintf("nvidia-caps/nvidia-cap%d", minor), m.caps, minor, 0o444})
	}
	for _, n := range nodes {
		if err := makeNode(k.path("dev", n.name), n.major, n.minor, n.mode); err != nil {
			return err
		}
	}
	return nil
}

// makeNode creates a device node. It keeps a correct one, because programs may watch it.
func makeNode(path string, major, minor int, mode uint32) error {
	device := unix.Mkdev(uint32(major), uint32(minor))
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err == nil {
		if st.Mode&unix.S_IFMT == unix.S_IFCHR && st.Rdev == device {
			return nil
		}
		if err := os.Remove(path); err != nil {
			return err
		}
	}
	if err := unix.Mknod(path, unix.S_IFCHR|mode, int(device)); err != nil {
		return fmt.Errorf("creating device node %s (requires root and CAP_MKNOD): %w", path, err)
	}
	return unix.Chmod(path, mode) // mknod applies the umask
}
