// Command load injects each CDI device of a directory into an OCI spec, as container runtimes do, and prints what this
// adds to the spec. The -modfile it is built with selects the version of the CDI library.
package main

import (
	"fmt"
	"os"

	oci "github.com/opencontainers/runtime-spec/specs-go"
)

// cache has the methods of the library's Cache that all versions share.
type cache interface {
	GetErrors() map[string][]error
	ListDevices() []string
	InjectDevices(spec *oci.Spec, names ...string) ([]string, error)
}

func main() {
	if err := load(os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func load(dir string) error {
	c, err := open(dir)
	if err != nil {
		return err
	}
	// The library skips invalid files and reports them only here.
	for path, errs := range c.GetErrors() {
		return fmt.Errorf("reading %s: %v", path, errs)
	}
	for _, name := range c.ListDevices() {
		spec := &oci.Spec{}
		if unresolved, err := c.InjectDevices(spec, name); err != nil {
			return fmt.Errorf("injecting %s (unresolved %v): %w", name, unresolved, err)
		}
		fmt.Println(name)
		for _, d := range spec.Linux.Devices {
			fmt.Println("", d.Path, d.Type, d.Major, d.Minor)
		}
		for _, m := range spec.Mounts {
			fmt.Println("", m.Source, m.Destination, m.Options)
		}
		if p := spec.Process; p != nil {
			fmt.Println(" env", p.Env)
			fmt.Println(" groups", p.User.AdditionalGids)
		}
		if spec.Hooks != nil {
			printHooks(*spec.Hooks)
		}
	}
	return nil
}

func printHooks(h oci.Hooks) {
	for name, hooks := range map[string][]oci.Hook{
		"createRuntime": h.CreateRuntime, "createContainer": h.CreateContainer, "startContainer": h.StartContainer,
		"poststart": h.Poststart, "poststop": h.Poststop,
	} {
		for _, hook := range hooks {
			fmt.Println("", name, hook.Path, hook.Args, hook.Env)
		}
	}
}
