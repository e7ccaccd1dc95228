// Package labels computes the GPU labels of a node, with the names and values of NVIDIA GPU Feature Discovery. The
// result depends on the inventory and the config only. Publishing the labels is up to the caller.
package labels
