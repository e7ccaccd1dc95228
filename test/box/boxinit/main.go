// Command boxinit runs the processes of a box:
//
//	keep DIR               create the cgroups, start PID 1, and remove the box at the end
//	init DIR               PID 1: join the cgroups, then exec boxinit inside
//	inside DIR             PID 1: build the box's file system, then reap orphans
//	enter DIR NAME ARG...  run a command in the box
//	run NAME ARG...        the part of enter in the box's namespaces: exec the command
//	forward DIR ADDRESS    forward connections from the listening socket on standard input to a TCP address in the box
//	accept ADDRESS         the part of forward in the box's namespaces: accept the connections
package main

import (
	"errors"
	"fmt"
	"os"
	"runtime"
)

func main() {
	// Namespaces and Pdeathsig are per thread.
	runtime.LockOSThread()
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "boxinit:", err)
		os.Exit(125)
	}
}

func run(args []string) error {
	switch {
	case len(args) == 2 && args[0] == "keep":
		return keep(args[1])
	case len(args) == 2 && args[0] == "init":
		return initBox(args[1])
	case len(args) == 2 && args[0] == "inside":
		return inside(args[1])
	case len(args) >= 3 && args[0] == "enter":
		return enter(args[1], append([]string{"run"}, args[2:]...))
	case len(args) >= 2 && args[0] == "run":
		return execCommand(args[1], args[2:])
	case len(args) == 3 && args[0] == "forward":
		return enter(args[1], []string{"accept", args[2]})
	case len(args) == 2 && args[0] == "accept":
		return accept(args[1])
	}
	return errors.New("usage: boxinit keep DIR | init DIR | inside DIR | enter DIR NAME ARG... | run NAME ARG... | " +
		"forward DIR ADDRESS | accept ADDRESS")
}
