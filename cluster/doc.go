// Package cluster sends Events and labels of the agent's Node to the API server, and watches the Node's labels.
//
// The agent never waits for the API server: an Event that cannot be sent is dropped and logged.
// docs/decisions/0004 explains why the package does not use client-go.
package cluster
