// Package apiserver tells the cluster about its node: what happens to it, as
// Events of the Node object for kubectl get events and kubectl describe node,
// and what it is, as labels. It also hears which labels others have given it.
//
// Nobody waits for the API server: what it cannot be told is dropped, and
// stands in the agent's log all the same. docs/decisions says why this is not
// client-go's own recorder.
package apiserver
