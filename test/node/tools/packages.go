package tools

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// packages are the Debian packages that the programs and images are made with and that a node
// runs on.
func packages() []string {
	return []string{
		"buildah", "debootstrap", // images
		"conmon",                                  // CRI-O
		"containernetworking-plugins", "iproute2", // the network of pods
		"gcc", "libc6-dev", "libseccomp-dev", "pkg-config", // runc, and the agent
	}
}

// InstallPackages installs the Debian packages that are missing, besides others that the
// caller needs. As with Build, one process does it at a time.
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
		return nil, fmt.Errorf("looking for dpkg (this needs a Debian machine): %w", err)
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
