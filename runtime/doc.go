// Package runtime tells which container runtime serves this node's kubelet,
// whether it does CDI, and which directories it reads specs from. A runtime
// whose CDI is off ignores the device plugin's answer without a word and
// starts pods without their GPUs, so somebody has to say it.
//
// It only asks: it never changes a runtime or its configuration.
package runtime
