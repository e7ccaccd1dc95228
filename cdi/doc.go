// Package cdi turns an inventory and the driver's files into a CDI spec, and
// keeps specs on disk.
//
// Inspect looks at the host and collects what a spec needs. Build makes the
// spec of that; it is pure, and the same node gives the same bytes. A File
// keeps one on disk and proves that what it holds can be used.
//
// It knows neither NVML nor Kubernetes, and reads no clock.
package cdi
