#!/usr/bin/env bash
# Builds the agent's image for amd64 and arm64 from the programs of release.sh, as an OCI image layout in a
# tar file, and an SBOM for each architecture:
#
#   release/image.sh DIRECTORY VERSION UNIX-TIME
#
# The build runs no program of the images, so a machine of either architecture can build both. The image also
# contains Debian's glibc, which the driver's libraries are linked against, and busybox as sh for the chart.
set -euo pipefail
dist=$1 version=$2 timestamp=$3

work=$(mktemp --directory --tmpdir=/var/tmp gpucdi-image.XXXXXX)
trap 'rm -rf "$work"' EXIT
store=(--root "$work/store" --runroot "$work/run" --storage-driver vfs)

# Extracts the Debian packages for an architecture into a directory. os-release and status.d identify them
# to vulnerability scanners.
debian() {
  local arch=$1 root=$2
  SOURCE_DATE_EPOCH=$timestamp mmdebstrap --quiet --variant=extract --architectures="$arch" --format=directory \
    --include=libc6,busybox-static --extract-hook='mkdir "$1/var/lib/dpkg/status.d" &&
      for deb in "$1"/var/cache/apt/archives/*.deb; do
        dpkg-deb --field "$deb" >"$1/var/lib/dpkg/status.d/$(dpkg-deb --field "$deb" Package)"
      done' bookworm "$work/debian"
  mkdir -p "$root/etc" "$root/var/lib/dpkg"
  mkdir -m 1777 "$root/tmp"
  printf 'ID=debian\nVERSION_ID="12"\n' >"$root/etc/os-release"
  ln -s busybox "$work/debian/bin/sh"
  mv "$work"/debian/{bin,lib*,usr} "$root/"
  mv "$work/debian/var/lib/dpkg/status.d" "$root/var/lib/dpkg/"
  rm -r "$work/debian"
}

# Writes the SBOM of a root file system, which includes those of its programs.
sbom() {
  local arch=$1 root=$2 programs=$3
  for package in "$root"/var/lib/dpkg/status.d/*; do
    jq --null-input --arg arch "$arch" --arg name "$(basename "$package")" \
      --arg version "$(sed -n 's/^Version: //p' "$package")" \
      '{components: [{type: "library", name: $name, version: $version,
        purl: "pkg:deb/debian/\($name)@\($version | @uri)?arch=\($arch)&distro=debian-12"}]}'
  done | jq --slurp --arg version "$version" '{
      bomFormat: "CycloneDX", specVersion: "1.6", version: 1,
      metadata: {component: {type: "container", name: "gpucdi/gpucdi", version: $version}},
      components: [.[].components[], (.[].metadata.component | values)] | unique_by(.purl)
    }' - "$programs"/*.cdx.json
}

for arch in amd64 arm64; do
  programs=$dist/gpucdi_${version}_linux_$arch root=$work/$arch
  debian "$arch" "$root"
  install -D -t "$root/usr/bin" "$programs"/{gpucdi,gpucdi-nvml,gpucdi-hook}
  ln -s /host/usr/lib/wsl "$root/usr/lib/wsl" # see Dockerfile
  sbom "$arch" "$root" "$programs" >"$dist/gpucdi_${version}_image_$arch.cdx.json"
  container=$(buildah "${store[@]}" from --arch "$arch" scratch)
  buildah "${store[@]}" add --quiet "$container" "$root" / >/dev/null
  buildah "${store[@]}" config --arch "$arch" --entrypoint '["/usr/bin/gpucdi"]' --env PATH=/usr/bin:/bin "$container"
  buildah "${store[@]}" commit --quiet --rm --timestamp "$timestamp" --manifest gpucdi "$container" >/dev/null
done
buildah "${store[@]}" manifest push --quiet --all gpucdi "oci:$work/layout:docker.io/gpucdi/gpucdi:$version" >/dev/null
tar --directory "$work/layout" --sort=name --owner=0 --group=0 --numeric-owner --mode=go=rX,u+rw,go-w \
  --mtime="@$timestamp" --create . >"$dist/gpucdi_${version}_image.tar"
