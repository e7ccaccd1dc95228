// This file is empty on purpose: a package with an assembly file may declare
// functions without a body, which is how kubelet_test.go reaches the device
// manager's constructor.
