// Package labels computes the GPU labels of a node, with the names and values of NVIDIA GPU Feature Discovery. The
// result depends only on the inventory, the config and the machine's name. Publishing the labels is up to the caller.
package labels
