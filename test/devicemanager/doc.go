// Package devicemanager tests the shipped binary against the kubelet's own
// device manager, of the Kubernetes version that the module pins: the code
// that registers plugins, picks devices, calls Allocate, checkpoints the
// answers and replays them. It runs in the test's process, over a simulated
// driver, and needs root, a C compiler and strace.
package devicemanager
