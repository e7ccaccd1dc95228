#!/usr/bin/env bash
# Writes what a release consists of into a directory, for amd64 and arm64:
#
#   release/release.sh DIRECTORY
#
# The same commit gives the same bytes, wherever it is checked out; the image of the programs as long as
# Debian's packages are the same.
set -euo pipefail
cd "$(dirname "$0")/.."
dist=$(realpath -m "${1:?the directory to write to}")

version=$(git describe --tags --always --dirty)
made=$(git log -1 --format=%ct)
declare -A compilers=([amd64]=x86_64-linux-gnu-gcc [arm64]=aarch64-linux-gnu-gcc)

rm -rf "$dist"
mkdir -p "$dist"
for arch in amd64 arm64; do
  name=gpucdi_${version}_linux_$arch
  GOOS=linux GOARCH=$arch CGO_ENABLED=1 CC=${compilers[$arch]} make --no-print-directory build \
    VERSION="$version" BIN="$dist/$name" >/dev/null
  for program in "$dist/$name"/*; do
    go tool -modfile=release/tools.mod cyclonedx-gomod bin -json -noserial -notimestamp -version "$version" \
      -output "$dist/$name/$(basename "$program").cdx.json" "$program" 2>/dev/null
  done
  cp LICENSE README.md CHANGELOG.md "$dist/$name/"
done
release/image.sh "$dist" "$version" "$made"
for arch in amd64 arm64; do
  name=gpucdi_${version}_linux_$arch
  tar --directory "$dist" --sort=name --owner=0 --group=0 --numeric-owner --mode=go=rX,u+rw,go-w \
    --mtime="@$made" --create "$name" | gzip --no-name >"$dist/$name.tar.gz"
  rm -r "${dist:?}/$name"
done
cp deploy/gpucdi.yaml "$dist/gpucdi.yaml"
(cd "$dist" && sha256sum -- * >SHA256SUMS)
cat "$dist/SHA256SUMS"
