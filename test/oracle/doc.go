// Package oracle compares the CDI specs that gpucdi generates with those of NVIDIA's library nvcdi, for the same
// simulated drivers. A difference is a failure unless it is listed with a reason.
package oracle
