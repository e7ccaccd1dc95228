# gpucdi-nvml needs glibc: the NVIDIA driver's libraries, which it loads from the host, are
# linked against it.
FROM golang:1.26-bookworm AS build
WORKDIR /src
COPY . .
ARG VERSION=dev
# The flags are those of make build.
RUN CGO_ENABLED=0 go build -tags grpcnotrace -trimpath -ldflags "-s -w -X main.version=${VERSION}" -o /out/ ./cmd/gpucdi \
 && CGO_ENABLED=1 go build -trimpath -ldflags "-s -w" -o /out/ ./cmd/gpucdi-nvml \
 && CGO_ENABLED=0 go build -trimpath -ldflags "-s -w" -o /out/ ./cmd/gpucdi-hook

FROM debian:bookworm-slim
COPY --from=build /out/ /usr/bin/
ENTRYPOINT ["/usr/bin/gpucdi"]
