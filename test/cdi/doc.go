// Package cdi holds the specs that gpucdi writes against other people's
// programs: the releases of the CDI library that runtimes were built with.
package cdi
