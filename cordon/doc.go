// Package cordon stores which GPUs and MIG devices an admin has cordoned: one file for each, named after its UUID. So
// writers cannot lose the cordons of each other, and a damaged file still names its device. The agent only reads the
// files. It accepts no change through its port, which is unauthenticated.
package cordon
