# gpucdi-nvml needs glibc: the NVIDIA driver's libraries, which it loads from the host, are
# linked against it.
FROM golang:1.26-bookworm AS build
WORKDIR /src
COPY . .
ARG VERSION=dev
ARG GOFLAGS
RUN make build BIN=/out VERSION=${VERSION}

FROM debian:bookworm-slim
COPY --from=build /out/ /usr/bin/
ENTRYPOINT ["/usr/bin/gpucdi"]
