// Package runtime tells which container runtime serves this node's kubelet,
// whether it does CDI, and which directories it reads specs from. A runtime
// whose CDI is off ignores the device plugin's answer without a word and
// starts pods without their GPUs, so somebody has to say it.
// It also reports which CDI devices the containers of pods were given.
//
// It changes no runtime and no configuration. Where a person wants to see a
// container with a GPU it launches one, and removes it again.
package runtime
