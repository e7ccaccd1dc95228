// Package cluster is the client of the API server. It sends Events, labels, a condition, a taint and ResourceSlices of
// the agent's Node, watches the Node's labels, and reads ResourceClaims and their pods. For the controller in package
// vcuda it follows pods, manages ResourceClaimTemplates and renews a Lease.
//
// The agent never waits for the API server, except while it prepares a ResourceClaim: an Event that cannot be sent is
// dropped, and a Pool publishes the latest devices once the API server is available.
// docs/decisions/0004 explains why the package does not use client-go.
package cluster
