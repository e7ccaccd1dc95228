// Package devicemanager tests the shipped gpucdi program against the kubelet's device manager of the Kubernetes version
// in go.mod: the code that registers plugins, selects devices, calls Allocate, and checkpoints and replays the
// responses. The device manager runs in the test process; the driver is simulated. The tests require root, a C compiler
// and strace.
package devicemanager
