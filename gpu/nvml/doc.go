// Package nvml implements the driver worker, gpucdi-nvml: it reads a node's GPUs through NVML, executes
// driver.Commands, and sends driver.Messages to gpucdi. It is the only package that imports go-nvml.
package nvml
