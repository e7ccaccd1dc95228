// Package runtime detects the container runtime of the node, whether its CDI support is enabled, and the directories
// from which it reads CDI specs. A runtime with CDI disabled silently ignores the CDI devices of an allocation and
// starts pods without their GPUs. The package also reports the devices of running containers.
//
// It does not change the runtime or its configuration. On request it launches a container with a GPU for diagnosis,
// and removes it afterwards.
package runtime
