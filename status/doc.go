// Package status is what the agent tells people about its node: the GPUs with
// their health and who holds them, and the links from the driver to the
// kubelet that have to hold for a pod to get one.
//
// Node is the form; Server gives it out over HTTP beside the agent's health
// and metrics, and Fetch asks for it. The package knows none of the rooms that
// the facts come from, but for the model.
package status
