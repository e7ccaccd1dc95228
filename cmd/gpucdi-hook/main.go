// Command gpucdi-hook is an OCI createContainer hook for images whose loader does not find the driver libraries in
// its default directories. Its arguments are container paths of driver libraries. The hook
//   - adds them to the container's /etc/ld.so.cache, or the image's CUDA forward compatibility libraries instead, if
//     these are newer and support the driver;
//   - adds their directories to the search path of musl;
//   - with --graphics, writes an application profile that limits EGL and Vulkan to the container's GPUs.
//
// It executes no programs, ignores its environment, and modifies no other files. docs/decisions/0007 has its security
// model.
package main

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"slices"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

// Exit codes. Runtimes do not start a container whose hook fails.
const (
	exitOK     = 0
	exitFailed = 1
)

// etcDir is relative to the container's root.
const etcDir = "etc"

// maxState limits the OCI state and the container's config.json, in bytes.
const maxState = 16 << 20

func main() { os.Exit(run(os.Args[1:], os.Stdin, os.Stderr)) }

func run(args []string, state io.Reader, stderr io.Writer) int {
	if err := hook(args, state); err != nil {
		fmt.Fprintf(stderr, "gpucdi-hook: adding the driver libraries to the container's loader configuration: %v; "+
			"fix the image, or disable the hook: unset cdi.hook, or omit --hook of gpucdi generate\n", err)
		return exitFailed
	}
	return exitOK
}

func hook(args []string, state io.Reader) error {
	opts, err := parseArgs(args)
	if err != nil {
		return err
	}
	dir, devices, err := readContainer(state)
	if err != nil {
		return fmt.Errorf("locating the container's root file system: %w", err)
	}
	unix.Umask(0o022) // with the runtime's umask, created files may be readable only by root
	root, err := openRoot(dir)
	if err != nil {
		return err
	}
	defer root.Close()
	libraries := opts.libraries
	if opts.driver != nil {
		libraries = prefer(compatLibraries(root, opts.driver), libraries)
	}
	etc, err := openBelow(root, etcDir, unix.O_DIRECTORY)
	if errors.Is(err, unix.ENOENT) {
		return nil // a loader in the image, if any, uses its default directories
	}
	if err != nil {
		return err
	}
	defer etc.Close()
	if err := addToCache(etc, libraries); err != nil {
		return fmt.Errorf("updating /%s/%s: %w", etcDir, cacheName, err)
	}
	if err := addToMuslList(root, etc, libraries); err != nil {
		return fmt.Errorf("updating /%s/%s: %w", etcDir, muslList, err)
	}
	if !opts.graphics {
		return nil
	}
	if err := addProfile(etc, devices); err != nil {
		return fmt.Errorf("writing /%s/nvidia/%s/%s: %w", etcDir, profileDir, profileName, err)
	}
	return nil
}

// options are the arguments of the hook, set by the CDI spec.
type options struct {
	libraries []string // container paths of driver libraries
	driver    version  // nil: ignore the image's forward compatibility libraries
	graphics  bool     // libraries include the libraries of the feature graphics
}

func parseArgs(args []string) (options, error) {
	var opts options
	flags := flag.NewFlagSet("gpucdi-hook", flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	flags.BoolVar(&opts.graphics, "graphics", false, "")
	flags.Func("driver-version", "", func(text string) (err error) {
		opts.driver, err = parseVersion(text)
		return err
	})
	if err := flags.Parse(args); err != nil {
		return options{}, err
	}
	if opts.libraries = flags.Args(); len(opts.libraries) == 0 {
		return options{}, errors.New("no libraries specified")
	}
	return opts, nil
}

// prefer returns libraries, followed by the others that have no library with the same file name.
func prefer(libraries, others []string) []string {
	for _, other := range others {
		if !slices.ContainsFunc(libraries, func(l string) bool { return path.Base(l) == path.Base(other) }) {
			libraries = append(libraries, other)
		}
	}
	return libraries
}

// readContainer returns the host path of the container's root file system, and the container's devices. They are in
// config.json in the bundle of the OCI state (runtime-spec, runtime.md, State).
func readContainer(state io.Reader) (root string, devices []specs.LinuxDevice, err error) {
	var s specs.State
	if err := json.NewDecoder(io.LimitReader(state, maxState)).Decode(&s); err != nil {
		return "", nil, fmt.Errorf("reading the OCI state: %w", err)
	}
	if !filepath.IsAbs(s.Bundle) {
		return "", nil, fmt.Errorf("invalid bundle %q in the OCI state: not an absolute path", s.Bundle)
	}
	file, err := os.Open(filepath.Join(s.Bundle, "config.json"))
	if err != nil {
		return "", nil, err
	}
	defer file.Close()
	var config specs.Spec
	if err := json.NewDecoder(io.LimitReader(file, maxState)).Decode(&config); err != nil {
		return "", nil, fmt.Errorf("reading %s: %w", file.Name(), err)
	}
	if config.Root == nil || config.Root.Path == "" {
		return "", nil, fmt.Errorf("no root file system in %s", file.Name())
	}
	if config.Linux != nil {
		devices = config.Linux.Devices
	}
	root = config.Root.Path
	if !filepath.IsAbs(root) {
		root = filepath.Join(s.Bundle, root)
	}
	return root, devices, nil
}
