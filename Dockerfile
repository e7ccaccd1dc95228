# The agent needs glibc: the NVIDIA driver's libraries, which it loads from the host, are
# linked against it.
FROM golang:1.26-bookworm AS build
WORKDIR /src
COPY . .
ARG VERSION=dev
# The flags are those of make build.
RUN CGO_ENABLED=1 go build -tags grpcnotrace -trimpath -ldflags "-s -w -X main.version=${VERSION}" -o /gpucdi ./cmd/gpucdi

FROM debian:bookworm-slim
COPY --from=build /gpucdi /usr/bin/gpucdi
ENTRYPOINT ["/usr/bin/gpucdi"]
