// Package nvml reads a node's GPUs through the driver's own library. It is the
// only importer of go-nvml.
//
// It runs in a process of its own, cmd/gpucdi-nvml, for gpu/driver, which it
// tells what it finds as driver.Messages.
package nvml
