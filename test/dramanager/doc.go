// Package dramanager tests package dra against the kubelet's DRA manager and plugin manager of the Kubernetes version
// in go.mod: the code that registers DRA drivers, prepares and unprepares claims, checkpoints the responses, and
// receives the health of devices. The managers run in the test process, with a fake API server.
package dramanager
