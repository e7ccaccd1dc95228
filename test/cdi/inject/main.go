// Command inject gives CDI devices to an empty container, as the runtimes that
// were built with one release of the CDI library do, and prints its OCI spec:
//
//	inject DIR DEVICE...
//
// It is a module of its own, since each release has a go.mod of its own here.
package main

import (
	"encoding/json"
	"fmt"
	"os"

	oci "github.com/opencontainers/runtime-spec/specs-go"
)

func main() {
	if err := run(os.Args[1], os.Args[2:]); err != nil {
		fmt.Fprintln(os.Stderr, "inject:", err)
		os.Exit(1)
	}
}

func run(dir string, devices []string) error {
	cache, err := open(dir)
	if err != nil {
		return fmt.Errorf("reading %s: %w", dir, err)
	}
	// A file that the library cannot read is not an error of the others.
	for path, errs := range cache.GetErrors() {
		return fmt.Errorf("reading %s: %v", path, errs)
	}
	spec := &oci.Spec{}
	if unresolved, err := cache.InjectDevices(spec, devices...); err != nil {
		return fmt.Errorf("injecting (unresolved: %v): %w", unresolved, err)
	}
	return json.NewEncoder(os.Stdout).Encode(spec)
}
