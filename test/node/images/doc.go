// Package images builds the container images of a node that cannot pull any, as archives in the cache of package tools.
// The base images are built with debootstrap and have the names used in the repository's Dockerfile. The agent's image is
// built from that Dockerfile with buildah; Release returns the one that make release builds without it.
//
// It requires root, Debian's debootstrap and buildah, and the go command.
package images
