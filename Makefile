# The targets that people use. `make` alone lists them.
.DEFAULT_GOAL := help
SHELL := /bin/bash

VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo dev)
BIN ?= bin
DIST ?= dist

# go-nvml binds functions that NVIDIA has deprecated, and the C compiler says so for each.
export CGO_CFLAGS ?= -O2 -g -Wno-deprecated-declarations

# A program with the race detector else waits a second at its end.
export GORACE ?= atexit_sleep_ms=0

# go test, which at the end says once more what failed, and how.
gotest := go tool -modfile=$(CURDIR)/tools.mod gotestsum --format standard-quiet --

.PHONY: help
help: ## Show this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 12

# grpcnotrace: with grpc's tracing the linker keeps 3 MB that are never called. nethttpomithttp2: half a
# MB; grpc has its own HTTP/2. Only gpucdi-nvml, which loads NVML, is linked to libc: the others start
# sooner, and gpucdi-hook is independent of the node's loader. The race detector requires cgo.
.PHONY: build
build: packages ## Build the programs into bin/
	CGO_ENABLED=$(if $(filter -race,$(GOFLAGS)),1,0) go build -tags grpcnotrace,nethttpomithttp2 -trimpath -ldflags "-s -w -X main.version=$(VERSION)" -o $(BIN)/ ./cmd/gpucdi
	go build -trimpath -ldflags "-s -w" -o $(BIN)/ ./cmd/gpucdi-nvml
	CGO_ENABLED=0 GOFLAGS="$(filter-out -race,$(GOFLAGS))" go build -trimpath -ldflags "-s -w" -o $(BIN)/ ./cmd/gpucdi-hook

.PHONY: manifests
manifests: ## Write deploy/gpucdi.yaml, the chart with its defaults
	cd test && go run ./chart > ../deploy/gpucdi.yaml.new && mv ../deploy/gpucdi.yaml.new ../deploy/gpucdi.yaml

.PHONY: reference
reference: ## Write the keys of docs/configuration.md from the types of package config
	go test ./config -run TestReference -update

.PHONY: demo
demo: ## Show a pod with two GPUs on a node in a box (root, Debian; KEEP=1 keeps it)
	@cd test && go run ./demo

.PHONY: test
test: lint unit system ## Everything that CI holds (root, Debian)

.PHONY: lint
lint: packages ## Static checks
	go vet ./... && cd test && go vet ./...
	go tool -modfile=tools.mod golangci-lint run --allow-parallel-runners ./...

.PHONY: unit
unit: packages ## The product's own tests, under the race detector
	$(gotest) -race ./...

FUZZTIME ?= 10s

# go test fuzzes one target of one package at a time.
.PHONY: fuzz
fuzz: packages ## Each fuzz test for FUZZTIME (10s)
	@set -o pipefail; go test -list '^Fuzz' ./... \
		| awk '/^Fuzz/ {names[++n] = $$1} /^ok/ {while (n > 0) print $$2, names[n--]}' \
		| while read -r package name; do \
			go test -run '^$$' -fuzz "^$$name\$$" -fuzztime $(FUZZTIME) "$$package" || exit 1; \
		done

# -count=1: go test does not see that the binary under test has changed. What a test starts has the
# race detector when the test has, or when the test is told so. Kubernetes 1.36 is compiled without
# it, for the nodes: its device manager would take 7 minutes of a core to compile once more, and the
# tests of it have the detector with 1.37. go test compiles what has no tests too, such as the nodes.
# -parallel is for tests that mostly wait, whatever cores there are, as on the three nodes of test/e2e.
.PHONY: system
system: packages ## The programs against real kubelets, runtimes and containers, under the race detector (root, Debian)
	cd test && $(gotest) -race -count=1 -p 1 -parallel 3 -timeout 45m \
		$$(go list -f '{{if or .TestGoFiles .XTestGoFiles}}{{.ImportPath}}{{end}}' ./... | grep -v /devicemanager$$)
	cd test && $(gotest) -exec "env 'GOFLAGS=$(GOFLAGS) -race'" -count=1 -parallel 4 -timeout 45m ./devicemanager
	cd test && $(gotest) -race -count=1 -parallel 4 -timeout 45m -modfile=kubernetes-1.37.mod -tags kubernetes1.37 ./devicemanager

.PHONY: bench
bench: packages ## Speed and memory beside NVIDIA's programs, as tables (root, Debian)
	@cd test && go run ./bench

.PHONY: release
release: packages ## Write what is released into dist/ (DIST=...), for amd64 and arm64 (root, Debian)
	@type aarch64-linux-gnu-gcc buildah jq mmdebstrap >/dev/null || { apt-get update -q && apt-get install -qy \
		--no-install-recommends gcc-aarch64-linux-gnu libc6-dev-arm64-cross buildah jq mmdebstrap; }
	release/release.sh $(DIST)

# What is needed before any Go code of ours can run; the test programs install the rest.
.PHONY: packages
packages:
	@command -v cc >/dev/null || { apt-get update -q && apt-get install -qy --no-install-recommends gcc libc6-dev; }
