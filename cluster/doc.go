// Package cluster sends Events and labels of the agent's Node to the API server, and watches the labels that
// others set on it.
//
// Nothing waits for the API server: an Event that cannot be sent is dropped, and remains in the agent's log.
// docs/decisions/0004 has the reason for not using client-go.
package cluster
