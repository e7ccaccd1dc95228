package host

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os/exec"
	"strings"
	"syscall"
)

// modprobes are where nodes keep their modprobe.
var modprobes = []string{"/usr/sbin/modprobe", "/sbin/modprobe", "/usr/bin/modprobe", "/run/current-system/sw/bin/modprobe"}

// LoadModule loads a kernel module with the node's own modprobe, run within the
// root: only that one knows where the node's modules are and what its admin has
// set for them. A module that the admin has put on the blacklist stays out.
func (r Root) LoadModule(ctx context.Context, name string) error {
	for _, program := range modprobes {
		_, err := r.Stat(program)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return fmt.Errorf("loading the kernel module %s: %w", name, err)
		}
		cmd := exec.CommandContext(ctx, program, "--use-blacklist", name)
		cmd.Dir = "/"
		cmd.Env = []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin"}
		cmd.SysProcAttr = &syscall.SysProcAttr{Chroot: r.dir}
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("loading the kernel module %s: running the node's %s: %w %s", name, program, err, strings.TrimSpace(string(out)))
		}
		return nil
	}
	return fmt.Errorf("loading the kernel module %s: the node has none of %s below %s", name, strings.Join(modprobes, ", "), r.dir)
}
