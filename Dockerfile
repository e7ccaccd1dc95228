# The base image needs glibc: gpucdi-nvml loads the NVIDIA driver's libraries from the host, and they are
# linked against glibc.
FROM golang:1.26-bookworm AS build
WORKDIR /src
COPY . .
ARG VERSION=dev
ARG GOFLAGS
RUN make build BIN=/out VERSION=${VERSION}

FROM debian:bookworm-slim
COPY --from=build /out/ /usr/bin/
# On WSL2, NVML loads another driver library by its path on the node.
RUN ln -s /host/usr/lib/wsl /usr/lib/wsl
ENTRYPOINT ["/usr/bin/gpucdi"]
