// Package labels says what the labels of a node tell about its GPUs, for pods
// that want one model and not another. The names and values are those of
// NVIDIA's feature discovery, which selectors, dashboards and schedulers know.
//
// It is a pure function of the inventory; who puts the labels where they
// belong is not its business.
package labels
