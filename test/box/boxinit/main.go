// Command boxinit is every process that a box needs, told apart by the first argument:
//
//	keep DIR               makes the cgroups, starts PID 1 and takes everything away at the end
//	init DIR               PID 1: builds the box's file system from inside, then reaps orphans
//	enter DIR NAME ARG...  runs a command in the box
package main

import (
	"errors"
	"fmt"
	"os"
	"runtime"
)

func main() {
	// Namespaces belong to threads: everything here happens on this one, and the children that
	// ask to die with their parent die with this one.
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
		return join(args[1])
	case len(args) == 2 && args[0] == "inside":
		return inside(args[1])
	case len(args) >= 3 && args[0] == "enter":
		return enter(args[1], args[2], args[3:])
	case len(args) >= 2 && args[0] == "run":
		return become(args[1], args[2:])
	}
	return errors.New("usage: boxinit keep DIR | init DIR | enter DIR NAME ARGS")
}
