// Package e2e deploys the agent's image with deploy/ on a node in a box with the simulated driver, and checks pods
// through kubectl.
package e2e
