// Package doctor diagnoses why pods on a node cannot use GPUs. It checks each
// component between the kernel module and the agent, and reports a message and a
// remedy. It is read-only and independent of the agent. On request, it also
// launches a container with a GPU and inspects it from inside.
package doctor
