// Package e2e runs the agent's image, deployed as deploy/ says, on a node in a
// box over the simulated driver, and looks at the pods as their users do.
package e2e
