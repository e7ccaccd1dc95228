// Package labels computes the GPU labels of a node, with the names and values of NVIDIA GPU Feature Discovery. Labels
// in the domain gpucdi.dev are gpucdi's own. The result depends only on the inventory, the config and the machine's
// product name. The caller publishes the labels.
package labels
