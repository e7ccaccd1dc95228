// Package apiserver tells the cluster what happens to its node, as Events of
// the Node object, for kubectl get events and kubectl describe node.
//
// Nobody waits for the API server: what it cannot be told is dropped, and
// stands in the agent's log all the same. docs/decisions says why this is not
// client-go's own recorder.
package apiserver
