// Package cdi builds CDI specs from an inventory and the driver files, and stores them on disk.
//
// Inspect collects the contents of a spec from the host. Build creates the spec; it is pure, and the same input gives
// the same bytes. A File stores a spec durably and verifies that container runtimes can use it.
//
// The package does not depend on NVML or Kubernetes.
package cdi
