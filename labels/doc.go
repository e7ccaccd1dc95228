// Package labels computes the GPU labels of a node, with the names and values of NVIDIA GPU Feature Discovery. The
// result depends only on the inventory, the config and the machine's product name. The caller publishes the labels.
package labels
