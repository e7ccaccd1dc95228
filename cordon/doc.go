// Package cordon stores which GPUs and MIG devices an admin has cordoned: one file for each, named after its UUID. This
// way, writers cannot lose each other's cordons, and a damaged file still names its device. The agent only reads the
// files. It accepts no changes through its port, which is unauthenticated.
package cordon
