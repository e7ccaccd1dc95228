// Package doctor diagnoses why pods on a node cannot use GPUs. It checks each component from the kernel module to the
// agent, and reports problems with their remedies. It is read-only and works without the agent. On request, it also
// launches a container with a GPU and inspects it from inside.
package doctor
