#!/usr/bin/env bash
# Builds a release for amd64 and arm64 in a directory, which it replaces:
#
#   release/release.sh DIRECTORY
#
# Builds of a commit are identical with the same C compilers and, for the image, the same Debian packages.
set -euo pipefail
dist=$(realpath -m "${1:?missing the directory to write to}")
cd "$(dirname "$0")/.."

version=$(git describe --tags --always --dirty)
timestamp=$(git log -1 --format=%ct)
declare -A compilers=([amd64]=x86_64-linux-gnu-gcc [arm64]=aarch64-linux-gnu-gcc)

rm -rf "$dist"
mkdir -p "$dist"
for arch in amd64 arm64; do
  name=gpucdi_${version}_linux_$arch
  GOOS=linux GOARCH=$arch CGO_ENABLED=1 CC=${compilers[$arch]} make --no-print-directory build \
    VERSION="$version" BIN="$dist/$name" >/dev/null
  for program in "$dist/$name"/*; do
    # Unlike go run, go tool exits with 0 if the program is killed.
    if ! log=$(go run -modfile=release/tools.mod github.com/CycloneDX/cyclonedx-gomod/cmd/cyclonedx-gomod bin \
      -json -noserial -notimestamp -version "$version" -output "$dist/$name/$(basename "$program").cdx.json" "$program" 2>&1); then
      echo "$log" >&2
      exit 1
    fi
  done
  cp LICENSE README.md CHANGELOG.md "$dist/$name/"
done
release/image.sh "$dist" "$version" "$timestamp"
for arch in amd64 arm64; do
  name=gpucdi_${version}_linux_$arch
  tar --directory "$dist" --sort=name --owner=0 --group=0 --numeric-owner --mode=go=rX,u+rw,go-w \
    --mtime="@$timestamp" --create "$name" | gzip --no-name >"$dist/$name.tar.gz"
  rm -r "${dist:?}/$name"
done
cp deploy/gpucdi.yaml "$dist/gpucdi.yaml"
(cd "$dist" && sha256sum -- * >SHA256SUMS)
cat "$dist/SHA256SUMS"
