package tools

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// packages returns the Debian packages required to build programs and images and to run a node.
func packages() []string {
	return []string{
		"buildah", "debootstrap", // images
		"conmon",                                  // CRI-O
		"containernetworking-plugins", "iproute2", // pod network
		"gcc", "libc6-dev", "libseccomp-dev", "pkg-config", // runc, CRI-O, gpucdi-nvml, simulated driver
	}
}

// InstallPackages installs the packages for programs, images and nodes, and others, with apt-get unless they are
// installed. As with Build, concurrent processes wait for each other.
func InstallPackages(ctx context.Context, others ...string) error {
	cache, err := CacheDir()
	if err != nil {
		return err
	}
	unlock, err := lock(ctx, filepath.Join(cache, "packages.lock"))
	if err != nil {
		return fmt.Errorf("installing Debian packages: %w", err)
	}
	defer unlock()
	missing, err := notInstalled(ctx, append(packages(), others...))
	if err != nil || len(missing) == 0 {
		return err
	}
	for _, args := range [][]string{
		{"update", "--quiet"},
		append([]string{"install", "--yes", "--quiet", "--no-install-recommends"}, missing...),
	} {
		cmd := exec.CommandContext(ctx, "apt-get", args...)
		cmd.Env = append(os.Environ(), "DEBIAN_FRONTEND=noninteractive")
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("installing Debian packages (%s): apt-get %s: %w\n%s",
				strings.Join(missing, " "), args[0], err, tail(string(out)))
		}
	}
	return nil
}

// notInstalled returns the packages that dpkg does not list as installed.
func notInstalled(ctx context.Context, names []string) ([]string, error) {
	if _, err := exec.LookPath("dpkg-query"); err != nil {
		return nil, fmt.Errorf("finding dpkg-query: %w; run this on Debian", err)
	}
	var missing []string
	for _, name := range names {
		out, err := exec.CommandContext(ctx, "dpkg-query", "--show", "--showformat", "${db:Status-Status}", name).Output()
		if err != nil || string(out) != "installed" {
			missing = append(missing, name)
		}
	}
	return missing, ctx.Err()
}
