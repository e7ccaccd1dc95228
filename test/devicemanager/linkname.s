// This file is intentionally empty. In a package with an assembly file, functions may be declared without a body, as
// kubelet_test.go does to call the device manager's unexported constructor.
