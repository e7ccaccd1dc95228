// Package node is a Kubernetes node and its control plane in a box.
package node
