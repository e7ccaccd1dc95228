// Package e2e deploys the agent's image with the manifest or the chart in deploy on a node in a box (package node) with
// the simulated driver, and checks pods through kubectl.
package e2e
