# `make` lists the targets.
.DEFAULT_GOAL := help
SHELL := /bin/bash

VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo dev)
BIN ?= bin
DIST ?= dist

# go-nvml binds deprecated NVML functions, each of which would cause a compiler warning.
export CGO_CFLAGS ?= -O2 -g -Wno-deprecated-declarations

# By default, a program built with the race detector sleeps for a second at exit.
export GORACE ?= atexit_sleep_ms=0

# go test with a summary of the failures at the end. lint runs vet. Unlike go run, go tool exits with 0 if the program is
# killed.
tool := go run -modfile=$(CURDIR)/tools.mod
gotest := $(tool) gotest.tools/gotestsum --format standard-quiet -- -vet=off

.PHONY: help
help: ## List the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 12

# grpcnotrace removes 3 MB of unused tracing code, and nethttpomithttp2 0.5 MB, since grpc has its own
# HTTP/2. Only gpucdi-nvml, which loads NVML, is linked to libc: static programs start faster, and
# gpucdi-hook must not depend on the loader of the node. The race detector requires cgo.
.PHONY: build
build: packages ## Build the programs into bin/
	CGO_ENABLED=$(if $(filter -race,$(GOFLAGS)),1,0) go build -tags grpcnotrace,nethttpomithttp2 -trimpath -ldflags "-s -w -X main.version=$(VERSION)" -o $(BIN)/ ./cmd/gpucdi
	go build -trimpath -ldflags "-s -w" -o $(BIN)/ ./cmd/gpucdi-nvml
	CGO_ENABLED=0 GOFLAGS="$(filter-out -race,$(GOFLAGS))" go build -trimpath -ldflags "-s -w" -o $(BIN)/ ./cmd/gpucdi-hook

.PHONY: manifests
manifests: ## Generate deploy/gpucdi.yaml from the chart
	cd test && go run ./chart > ../deploy/gpucdi.yaml.new && mv ../deploy/gpucdi.yaml.new ../deploy/gpucdi.yaml

.PHONY: reference
reference: ## Generate docs/cli.md, docs/chart-values.md, the keys in docs/configuration.md, and the schema of the value config
	go test . ./config ./cmd/gpucdi -run TestReference -update

.PHONY: demo
demo: ## Run a pod with two simulated GPUs on a node in a box (root, Debian; KEEP=1 keeps the node)
	@cd test && go run ./demo

.PHONY: test
test: ## Run all checks and tests, as in CI, and print the time of each part (root, Debian)
	@took=; for part in lint unit system; do \
		start=$$SECONDS; $(MAKE) --no-print-directory $$part || exit; \
		took+="$$(printf '%-8s %5d s' $$part $$((SECONDS - start)))"$$'\n'; \
	done; printf %s "$$took"

# golangci-lint also vets the packages of the main module.
.PHONY: lint
lint: packages ## Run the linters
	cd test && go vet ./...
	$(tool) github.com/golangci/golangci-lint/v2/cmd/golangci-lint run --allow-parallel-runners ./...

.PHONY: unit
unit: packages ## Run the unit tests, with the race detector where it is not too slow
	$(gotest) -race ./...
	$(gotest) -run TestFleet ./cluster

FUZZTIME ?= 10s

# go test runs only one fuzz test at a time.
.PHONY: fuzz
fuzz: packages ## Run each fuzz test for FUZZTIME (default: 10s)
	@set -o pipefail; go test -list '^Fuzz' ./... \
		| awk '/^Fuzz/ {names[++n] = $$1} /^ok/ {while (n > 0) print $$2, names[n--]}' \
		| while read -r package name; do \
			go test -run '^$$' -fuzz "^$$name\$$" -fuzztime $(FUZZTIME) "$$package" || exit 1; \
		done

.PHONY: prepare
prepare: packages ## Build what the system tests share: Kubernetes, runtimes, images (a quarter of an hour the first time)
	@cd test && go run ./prepare

# Parts of the names of the tests in devicemanager that depend on the Kubernetes release.
lifecycle := Kubelet|Restart|Rollout|Ledger|Gone|Checkpoint|SavedState|Deleted|Moving|PassBy

# -count=1: the test cache does not track the programs under test. TEST_RACE: the programs under test are built with the
# race detector; the tests are not, so that they share compiled Kubernetes packages with the nodes in a box. -parallel 6:
# those tests wait rather than compute; e2e itself limits its nodes. devicemanager and e2e run alone: their timeouts and
# health intervals are short, and other tests would slow down the agent. -p 3: product, container and chart take longest,
# and the tests of product and chart run one after the other.
system: export TEST_RACE = 1
.PHONY: system
system: prepare ## Run the system tests: kubelets, runtimes, containers, with the race detector (root, Debian)
	cd test && $(gotest) -count=1 -parallel 6 -timeout 45m ./devicemanager
	cd test && $(gotest) -count=1 -parallel 6 -timeout 45m ./e2e
	cd test && $(gotest) -count=1 -p 3 -parallel 2 -timeout 45m ./product ./container ./chart \
		$$(go list -f '{{if or .TestGoFiles .XTestGoFiles}}{{.ImportPath}}{{end}}' ./... | grep -v '/devicemanager$$\|/e2e$$')
	cd test && $(gotest) -count=1 -parallel 6 -timeout 45m \
		-run '$(lifecycle)' -modfile=kubernetes-1.37.mod -tags kubernetes1.37 ./devicemanager
	cd test && $(gotest) -count=1 -parallel 6 -timeout 45m -modfile=kubernetes-1.37.mod -tags kubernetes1.37 ./dramanager

.PHONY: bench
bench: packages ## Compare speed and memory with NVIDIA's programs (root, Debian)
	@cd test && go run ./bench

# The C compiler for the other architecture, and its Debian packages.
ifeq ($(shell uname -m),aarch64)
cross := x86_64-linux-gnu-gcc
cross_packages := gcc-x86-64-linux-gnu libc6-dev-amd64-cross
else
cross := aarch64-linux-gnu-gcc
cross_packages := gcc-aarch64-linux-gnu libc6-dev-arm64-cross
endif

.PHONY: release
release: packages ## Build a release for amd64 and arm64 in dist/ (DIST=…; root, Debian)
	@type $(cross) buildah jq mmdebstrap >/dev/null || { apt-get update -q && apt-get install -qy \
		--no-install-recommends $(cross_packages) buildah jq mmdebstrap; }
	release/release.sh $(DIST)

# Installs a C compiler. The tests install their other dependencies.
.PHONY: packages
packages:
	@command -v cc >/dev/null || { apt-get update -q && apt-get install -qy --no-install-recommends gcc libc6-dev; }
