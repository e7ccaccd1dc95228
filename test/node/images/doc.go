// Package images makes the container images that a node needs where none can be pulled, as
// archives in the cache that containerd can import. The base images are made with
// debootstrap and have the names that the Dockerfile of the repository uses; the image of the
// agent is built from that Dockerfile with buildah.
//
// It needs root, Debian's debootstrap and buildah, and the go command.
package images
