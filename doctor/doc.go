// Package doctor looks at every link from the kernel module to the agent that
// has to hold for a pod to get a GPU, and says of each what it found and how to
// mend it. It looks by itself and changes nothing, so it works when the agent
// does not, and when everything is broken. Told to, it also launches a container
// with a GPU, and looks from inside.
package doctor
