# Everything here needs Go; `make test` needs more, and says what (test/deps).
# `make help` lists the targets.

GO      ?= go
VERSION ?= $(shell build/version)
# Where `make build` puts the programs.
BIN     ?= bin

# Passed to every `go test`, such as GOTESTFLAGS='-run Crash -v'.
GOTESTFLAGS ?=
# How long `make fuzz` spends on each target.
FUZZTIME ?= 30s
# How many operations `make model` lets whole agents live through.
OPS ?= 1000000
# Passed to test/crash, such as CRASHFLAGS='-only loop -kills 100000'.
CRASHFLAGS ?=

# Passed to test/conform, such as CONFORMFLAGS='-only bridge,ptp', which takes the other lists' reports from bin/conform.
CONFORMFLAGS ?=

module  := github.com/berth-net/berth
ldflags := -s -w -X $(module)/internal/version.Text=$(VERSION)

# Modules of their own, so that what they need is not what Berth needs.
modules := $(patsubst %/go.mod,%,$(shell find build test -name go.mod))

# The suite of `berth conform`, a module that Berth's own requires: its packages are built, tested and vetted with Berth's.
suite := $(module)/conform/...

.PHONY: build generate demo test test-cluster test-e2e figures cluster fresh plain model faults crash deps peers flannel packages before bench manifests conform lint vuln fuzz deb rpm image release reproducible clean help

# Static, and not position-independent. A PIE needs ld.so (-buildmode=pie), which
# nodes with musl or with nothing but a kernel lack, or a C toolchain to be static
# (-static-pie). And it costs what each pod pays: exec of `berth-cni` VERSION takes
# 2.1 ms, as a PIE 2.7 and as a static one 3.0; `berthd --version` 5.8 and 8.2 (p50 of
# 1,500 and of 60 by turns, 2 cores). What it would make harder, the use of a
# memory error, Go without cgo has few of.
go_build = CGO_ENABLED=0 $(GO) build -trimpath -buildvcs=false -ldflags '$(ldflags)' -o $(BIN)/

build: ## the programs, static, into bin/: berth, berthd, berth-cni, berth-operator, berth-runner, cni-conform (default)
	$(go_build) ./cmd/... $(suite:...=cmd/...)

# Not berth-operator, which takes minutes to compile.
demo: ## a node with 20 pods in fresh namespaces, killed half-way; needs nothing but Go
	$(go_build) ./cmd/berth ./cmd/berthd ./cmd/berth-cni
	@bin/berth demo

# As the programs are built: what is compiled for these serves tests, vet and staticcheck, in whichever folder the clone lies.
export GOFLAGS := $(GOFLAGS) -trimpath

# Half of the time that tests take they wait, for the kernel and for programs. `make lint` has vet's word.
gotest = $(GO) test -p $$(($$(nproc) + 1)) -vet=off
# These packages' tests take longest. They begin first, so that none of them runs alone at the end.
longest = ./test/networks ./internal/agent $(module)/conform ./test/containerd ./test/failures ./test/packages ./test/hostile ./test/conform ./test/node

# Tests of other modules read files outside of these, which `go test` does not see when it looks into its cache.
test: deps build peers packages before ## every test; as root it first installs what they use (see deps)
	@set -e; export BERTH_PROGRAMS=$$(mktemp -d); trap 'rm -rf $$BERTH_PROGRAMS' EXIT; trap 'exit 1' INT TERM HUP; \
	chmod 755 $$BERTH_PROGRAMS; CGO_ENABLED=0 $(GO) build -buildvcs=false -ldflags '-s -w' -o $$BERTH_PROGRAMS/ ./cmd/...; \
	$(gotest) -timeout 40m $(GOTESTFLAGS) $(longest) $$($(GO) list ./... $(suite) | grep -v '/test/cluster$$'); \
	for m in $(modules); do \
		if test -n "$$(find $$m -name '*_test.go')"; then \
			echo "$(GO) -C $$m test $(GOTESTFLAGS) ./..."; $(GO) -C $$m test -vet=off -count=1 $(GOTESTFLAGS) ./...; \
		fi; \
	done

test-cluster: deps peers flannel cluster ## Berth in a Kubernetes cluster of three nodes, on this machine (root)
	GO=$(GO) test/cluster/run $(GOTESTFLAGS)

test-e2e: deps peers cluster ## Kubernetes' own conformance tests of networks, and pods with whereabouts, in such clusters: 5 minutes, besides the build
	GO=$(GO) test/cluster/build e2e
	GO=$(GO) test/cluster/whereabouts/build bin/whereabouts
	$(GO) test $(GOTESTFLAGS) -tags e2e -run 'Test(Upstream|Whereabouts)$$' -count 1 -v -timeout 60m ./test/cluster

figures: deps peers cluster ## the network's share of pods' starts and ends in such a cluster, beside bridge
	$(GO) test $(GOTESTFLAGS) -tags figures -run 'TestFigures$$' -count 1 -v -timeout 30m ./test/cluster

# Both parts, and the next run, find in CACHE what was downloaded and compiled before, unless another run uses it.
fresh: ## what CI runs: the README's commands on a minimal Debian as a plain user, then all checks as root
	@set -ex; export CACHE=$${XDG_CACHE_HOME:-$$HOME/.cache}/berth-ci; mkdir -p $$CACHE; exec 9>$$CACHE/lock; flock --timeout 60 9 || unset CACHE; \
		test/fresh tester make demo test GOTESTFLAGS=-short; \
		test/fresh root .ci/checks

plain: ## every test as a plain user who has the programs of deps, on a minimal Debian: too long for CI
	DEPS=yes test/fresh tester make test

model: ## whole agents on a kernel in memory, against a model, for OPS (a million) operations
	$(GO) test ./internal/agent -run 'TestWhole$$' -whole $(OPS) -v -timeout 40m

faults: ## hold every planted fault of the suite of `berth conform` against every check
	$(GO) test $(module)/conform -run 'TestFaults$$' -every -count 1 -v -timeout 90m

crash: build peers ## SIGKILL berthd, berth-cni and berth-runner at every call that changes something; see CRASHFLAGS
	$(GO) run ./test/crash $(CRASHFLAGS)

deps: ## install the programs that tests use (root on Debian), or say which are missing
	@test/deps

peers: ## the reference plugins, Multus, flannel's plugin, cnitool and crictl, into bin/peers/
	@test/peers/build bin/peers

flannel: ## flannel, from which the cluster's tests migrate, into bin/flannel/
	@GO=$(GO) test/cluster/flannel/build bin/flannel

# The machine's architecture alone, so that CI does not wait for another one.
packages: ## two versions of packages, image, archive, SBOMs and checksums, into bin/packages/; as root also a Debian to install them in
	@rm -rf bin/packages
	@set -e; for v in 0.0.1 0.0.2; do \
		DIST=bin/packages/$$v VERSION=v$$v ARCHES=$$($(GO) env GOARCH) GO=$(GO) build/dist deb rpm image archive sbom sums; \
	done
	@test $$(id -u) != 0 || test/debian >/dev/null || test "$$CI" != true

before: ## the programs of the version before this one, into bin/before/
	@test/before bin/before

cluster: ## the programs of Kubernetes and etcd, into the user's cache folder, Helm, and what makes the image: 15 minutes, once a version
	GO=$(GO) test/cluster/build
	$(GO) -C test/helm build -o /dev/null helm.sh/helm/v4/cmd/helm
	$(GO) -C build build -o /dev/null ./image

bench: build peers ## measure Berth beside its peers, into docs/BENCHMARKS.md
	$(GO) run ./test/bench -out docs/BENCHMARKS.md

manifests: ## the plain manifests of the Helm chart, into deploy/kubernetes
	cp deploy/kubernetes/crds/*.yaml deploy/helm/berth/files/crds/
	$(GO) -C test/helm run ./manifest ../../deploy/helm/berth ../../deploy/kubernetes

conform: build peers ## hold Berth and others' plugins to the specification, into docs/CONFORMANCE.md; see CONFORMFLAGS
	$(GO) run ./test/conform -out docs/CONFORMANCE.md $(CONFORMFLAGS)

# The types' deep copies, and the CRDs. `make lint` compares them with a fresh generation.
controller_gen = bin/tools/controller-gen paths=./api/v1alpha1 object crd
generate: ## what is generated: deep copies of api/v1alpha1, and deploy/kubernetes/crds
	$(GO) -C test/tools build -o $(CURDIR)/bin/tools/ sigs.k8s.io/controller-tools/cmd/controller-gen
	$(controller_gen) output:crd:dir=deploy/kubernetes/crds

# test/cluster/dns only names the parts of CoreDNS, and all of that would be compiled.
lint: ## gofmt, go vet, staticcheck, go.mod and its reasons, shell syntax
	@bad=$$(find . -name '*.go' -not -path './bin/*' -exec gofmt -l {} +); \
		test -z "$$bad" || { echo "gofmt would change:"; echo "$$bad"; exit 1; }
	$(GO) vet ./... $(suite)
	$(GO) vet -tags e2e,figures ./test/cluster
	@set -e; for m in $(modules); do \
		test $$m = test/cluster/dns || test -z "$$(find $$m -name '*.go')" || { echo "$(GO) -C $$m vet ./..."; $(GO) -C $$m vet ./...; }; \
	done
	$(GO) -C test/tools build -o $(CURDIR)/bin/tools/ honnef.co/go/tools/cmd/staticcheck
	bin/tools/staticcheck ./... $(suite)
	bin/tools/staticcheck -tags e2e,figures ./test/cluster
	@$(MAKE) -s generate && git diff --exit-code api/v1alpha1 deploy/kubernetes/crds || \
		{ echo "generated files differ from a fresh generation: commit what make generate made"; exit 1; }
	$(GO) mod tidy -diff
	$(GO) -C conform mod tidy -diff
	@for m in $$(awk '/^\t/ && !/indirect/ { print $$1 }' go.mod); do \
		grep -q "^| .$$m. |" docs/DEPENDENCIES.md || { echo "docs/DEPENDENCIES.md has no reason for $$m"; bad=1; }; \
	done; test -z "$$bad"
	@set -e; for f in $$(find . -type f -perm -u+x -not -path './.git/*' -not -path './bin/*'); do \
		case "$$(head -n 1 $$f)" in \
		*bash*) echo "bash -n $$f"; bash -n $$f;; \
		*/sh*) echo "sh -n $$f"; sh -n $$f;; \
		esac; \
	done

vuln: ## known vulnerabilities in what the programs call, by govulncheck, where its database can be had (GOVULNDB)
	@GO=$(GO) test/vuln

fuzz: ## every fuzz target for FUZZTIME (30s) each
	@set -e; for m in . conform; do \
		for p in $$($(GO) -C $$m list -f '{{if or .TestGoFiles .XTestGoFiles}}{{.ImportPath}}{{end}}' ./...); do \
			for f in $$($(GO) -C $$m test -list '^Fuzz' $$p | grep '^Fuzz' || true); do \
				echo "$$p $$f"; $(GO) -C $$m test -run '^$$' -fuzz "^$$f\$$" -fuzztime $(FUZZTIME) $$p; \
			done; \
		done; \
	done

deb rpm: ## packages for amd64 and arm64, into dist/
	VERSION=$(VERSION) GO=$(GO) build/dist $@

image: ## container images of Berth and of cni-conform for amd64 and arm64, as OCI archives, into dist/
	VERSION=$(VERSION) GO=$(GO) build/dist $@

release: ## all that a version is released as, into dist/: packages, image, archives, SBOMs, checksums
	VERSION=$(VERSION) GO=$(GO) build/dist $@

reproducible: ## two releases of HEAD, made at different places, which must be the same bytes
	GO=$(GO) build/reproducible

clean: ## remove bin/ and dist/
	rm -rf bin dist

help: ## this list
	@awk -F ':.*## ' '/^[a-z -]+:.*## / { printf "make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)
