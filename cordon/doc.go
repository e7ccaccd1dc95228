// Package cordon stores which GPUs and MIG devices an admin has cordoned, in a file for each, named after its UUID. So
// concurrent writers cannot overwrite each other's cordons, and a damaged file still identifies its device. The agent
// only reads the files. It accepts no changes through its port, which is unauthenticated.
package cordon
