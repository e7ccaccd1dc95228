// Command gpucdi-hook is an OCI createContainer hook for images whose loader does not come upon the
// driver by itself: it adds the libraries in its arguments, which are paths in the container, to the
// container's /etc/ld.so.cache, or those of the image's own CUDA that are newer and work on the
// driver, and their directories to those that musl searches. To the driver's libraries for graphics
// it tells which GPUs are the container's. That is all that it does. It runs nothing, takes nothing
// from its environment, and changes those three files; docs/decisions/0007 says what bounds it.
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

// The exit codes: a runtime does not start a container whose hook fails.
const (
	exitDone   = 0
	exitFailed = 1
)

// etcDir is the directory of the files that loaders read, in a root file system.
const etcDir = "etc"

// maxState bounds what is read of a runtime, in bytes.
const maxState = 16 << 20

func main() { os.Exit(run(os.Args[1:], os.Stdin, os.Stderr)) }

func run(args []string, state io.Reader, stderr io.Writer) int {
	if err := hook(args, state); err != nil {
		fmt.Fprintf(stderr, "gpucdi-hook: leading the container's loader to the driver's libraries: %v "+
			"(mend the image, or leave the hook out of the CDI spec)\n", err)
		return exitFailed
	}
	return exitDone
}

func hook(args []string, state io.Reader) error {
	asked, err := parseArgs(args)
	if err != nil {
		return err
	}
	dir, devices, err := readContainer(state)
	if err != nil {
		return fmt.Errorf("reading where the container's root file system is: %w", err)
	}
	unix.Umask(0o022) // the runtime's may keep others than root from what is made here
	root, err := openRoot(dir)
	if err != nil {
		return err
	}
	defer root.Close()
	libraries := asked.libraries
	if asked.driver != nil {
		libraries = prefer(compatLibraries(root, asked.driver), libraries)
	}
	etc, err := openBelow(root, etcDir, unix.O_DIRECTORY)
	if errors.Is(err, unix.ENOENT) {
		return nil // the image's loader, if it has one, searches its directories
	}
	if err != nil {
		return err
	}
	defer etc.Close()
	if err := addToCache(etc, libraries); err != nil {
		return fmt.Errorf("adding to its /%s/%s: %w", etcDir, cacheName, err)
	}
	if err := addToMuslList(root, etc, libraries); err != nil {
		return fmt.Errorf("adding to its /%s/%s: %w", etcDir, muslList, err)
	}
	if !asked.graphics {
		return nil
	}
	if err := addProfile(etc, devices); err != nil {
		return fmt.Errorf("making its /%s/nvidia/%s/%s: %w", etcDir, profileDir, profileName, err)
	}
	return nil
}

// asks is what the spec asks of the hook.
type asks struct {
	libraries []string // the driver's
	driver    version  // nil: the image's own CUDA is not to be looked at
	graphics  bool     // libraries has those for graphics
}

func parseArgs(args []string) (asks, error) {
	var asked asks
	flags := flag.NewFlagSet("gpucdi-hook", flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	flags.BoolVar(&asked.graphics, "graphics", false, "")
	flags.Func("driver-version", "", func(text string) (err error) {
		asked.driver, err = parseVersion(text)
		return err
	})
	if err := flags.Parse(args); err != nil {
		return asks{}, err
	}
	if asked.libraries = flags.Args(); len(asked.libraries) == 0 {
		return asks{}, errors.New("no libraries are given")
	}
	return asked, nil
}

// prefer returns libraries, with those others that have no such name.
func prefer(libraries, others []string) []string {
	for _, other := range others {
		if !slices.ContainsFunc(libraries, func(l string) bool { return path.Base(l) == path.Base(other) }) {
			libraries = append(libraries, other)
		}
	}
	return libraries
}

// readContainer returns the container's root file system as the host sees it, and its devices. The
// OCI state does not say them, but where the container's config is (runtime-spec, runtime.md, State).
func readContainer(state io.Reader) (root string, devices []specs.LinuxDevice, err error) {
	var s specs.State
	if err := json.NewDecoder(io.LimitReader(state, maxState)).Decode(&s); err != nil {
		return "", nil, fmt.Errorf("reading the OCI state: %w", err)
	}
	if !filepath.IsAbs(s.Bundle) {
		return "", nil, fmt.Errorf("the OCI state has the bundle %q, want an absolute path", s.Bundle)
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
		return "", nil, fmt.Errorf("%s names no root file system", file.Name())
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
