// Package vcuda creates the ResourceClaimTemplates for pods that request parts of GPUs with gpu-manager's resources
// vcuda-core and vcuda-memory.
//
// An admission policy of the chart replaces these resources with a reference to a template that is named after the
// request, such as "vcuda-c30-m4000". The Controller creates the templates that pods refer to, and deletes those that
// no pod has referred to for an hour, and those with an outdated spec. It decides nothing else: the scheduler allocates
// the claims, and the agent of a node sets the limits.
package vcuda
