// Package host reads the node's file system below a root, which is "/" on the
// node itself and a mount of it inside the agent's container; finds the driver
// in it; and writes files that survive a crash. It runs the node's modprobe, and
// bounds what programs and hardware say of themselves.
//
// Every path is resolved as the node would resolve it after a chroot: an
// absolute link, or one with too many "..", stays below the root.
package host
