// Package oracle compares the specs that gpucdi generates with those of
// NVIDIA's own library, over the same simulated drivers. What theirs gives a
// container and ours does not is a failure, unless it is listed with the
// reason.
package oracle
