// Command gpucdi-hook is an OCI createContainer hook for images whose loader does not come upon the
// driver by itself: it adds the libraries in its arguments, which are paths in the container, to the
// container's /etc/ld.so.cache, or those of the image's own CUDA that are newer and work on the
// driver, and their directories to those that musl searches. That is all that it does. It runs
// nothing, takes nothing from its environment, and changes those two files; docs/decisions/0007 says
// what bounds it.
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
	driver, libraries, err := parseArgs(args)
	if err != nil {
		return err
	}
	dir, err := rootDir(state)
	if err != nil {
		return fmt.Errorf("reading where the container's root file system is: %w", err)
	}
	root, err := openRoot(dir)
	if err != nil {
		return err
	}
	defer root.Close()
	if driver != nil {
		libraries = prefer(compatLibraries(root, driver), libraries)
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
	return nil
}

// parseArgs returns the driver's version, which is nil where the image's own CUDA is not to be
// looked at, and the driver's libraries.
func parseArgs(args []string) (driver version, libraries []string, err error) {
	flags := flag.NewFlagSet("gpucdi-hook", flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	flags.Func("driver-version", "", func(text string) (err error) {
		driver, err = parseVersion(text)
		return err
	})
	if err := flags.Parse(args); err != nil {
		return nil, nil, err
	}
	if flags.NArg() == 0 {
		return nil, nil, errors.New("no libraries are given")
	}
	return driver, flags.Args(), nil
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

// rootDir returns the container's root file system as the host sees it. The OCI state does not
// say it, but where the container's config is (runtime-spec, runtime.md, State).
func rootDir(state io.Reader) (string, error) {
	var s specs.State
	if err := json.NewDecoder(io.LimitReader(state, maxState)).Decode(&s); err != nil {
		return "", fmt.Errorf("reading the OCI state: %w", err)
	}
	if !filepath.IsAbs(s.Bundle) {
		return "", fmt.Errorf("the OCI state has the bundle %q, want an absolute path", s.Bundle)
	}
	file, err := os.Open(filepath.Join(s.Bundle, "config.json"))
	if err != nil {
		return "", err
	}
	defer file.Close()
	var config specs.Spec
	if err := json.NewDecoder(io.LimitReader(file, maxState)).Decode(&config); err != nil {
		return "", fmt.Errorf("reading %s: %w", file.Name(), err)
	}
	if config.Root == nil || config.Root.Path == "" {
		return "", fmt.Errorf("%s names no root file system", file.Name())
	}
	if filepath.IsAbs(config.Root.Path) {
		return config.Root.Path, nil
	}
	return filepath.Join(s.Bundle, config.Root.Path), nil
}
