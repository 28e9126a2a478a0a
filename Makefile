# Every target works in a fresh clone with Go and git alone, but for image (Docker)
# and test (which says what it installs).

GO    ?= go
DIST  ?= dist

# What make image and make image-archive build: full, compat or slim, for whom.
FLAVOUR ?= full
ARCH    ?= $(shell $(GO) env GOARCH)
# CoreDNS's version and the number of our release, as in v1.15.0-steadfast.1; empty
# for what is no release.
VERSION ?=
IMAGE   ?= steadfast/coredns:$(or $(VERSION),latest)$(SUFFIX)
SUFFIX   = $(if $(filter-out full,$(FLAVOUR)),-$(FLAVOUR))
# The image to build on. A distroless one brings what a shell-less Debian has.
BASE    ?= scratch
# CA certificates for the image: those that this machine trusts.
CERTS   ?= /etc/ssl/certs/ca-certificates.crt
# Time zones for the image: those that Go brings.
ZONES   ?= $(shell $(GO) env GOROOT)/lib/time/zoneinfo.zip

BASED_ON = $(shell $(GO) list -m -f '{{.Version}}' $(UPSTREAM))
RELEASE  = $(patsubst $(BASED_ON)-steadfast.%,%,$(VERSION))

# What make bump moves, and to where.
UPSTREAM = github.com/coredns/coredns
COREDNS ?=

# What make failover plays: scenario/rate/variant, as in PLAY=black-hole/500. With
# LONG=1 also what takes many minutes.
PLAY ?= .
LONG ?=
OUTAGE ?= 10m

# Pinned here and not in go.mod, which lists what the product is made of.
GOLANGCI_LINT = github.com/golangci/golangci-lint/v2/cmd/golangci-lint@v2.15.0

# Where packages go, and what they say of themselves. Their files bear the date of the
# last commit, so that the same commit gives the same packages.
PACKAGES        ?= $(DIST)/packages
PACKAGE_VERSION ?= $(or $(subst -,+,$(VERSION:v%=%)),$(shell sed -n 's/^var Steadfast = "\([^"]*\)".*/\1/p' build/version/version.go))
PACKAGE_DATE    ?= $(shell git log -1 --format=%ct)
TOOL             = $(GO) tool -modfile=build/tools/go.mod

# A static binary that depends on nothing, not even on where it was built.
BUILD = CGO_ENABLED=0 $(GO) build -trimpath -ldflags '-s -w$(if $(VERSION), -X steadfast.internal/build/version.Steadfast=$(RELEASE))'

# The linter looks at the code as the tests build it, so that all of CoreDNS is
# compiled for both at once.
RACE = -race

.PHONY: help
help: ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "%-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: generate
generate: ## write the lists of plugins, build/plugins and build/*/plugins, from plugin.cfg
	$(GO) generate ./build

.PHONY: build
build: ## build the static binary ./coredns
	$(BUILD) -o coredns ./build

.PHONY: build-compat
build-compat: ## build ./coredns in the flavour that answers to the word forward
	$(BUILD) -o coredns ./build/compat

.PHONY: build-slim
build-slim: ## build ./coredns in the flavour for hosts and sidecars
	$(BUILD) -o coredns ./build/slim

# Both programs are written in a place of their own, so that nothing that is in use
# is replaced. CoreDNS's package main is that of the version in go.mod.
.PHONY: size
size: ## compare the flavours with CoreDNS built with the same flags; fail above 103 % of it, or 40 MB for slim
	mkdir -p $(DIST)/size
	$(BUILD) -o $(DIST)/size/stock github.com/coredns/coredns
	$(BUILD) -o $(DIST)/size/full ./build
	$(BUILD) -o $(DIST)/size/compat ./build/compat
	$(BUILD) -o $(DIST)/size/slim ./build/slim
	@cd $(DIST)/size && stat -c '%s %n' stock full compat slim | awk \
		'$$2 == "stock" { stock = $$1 } \
		{ most = $$2 == "slim" ? 40000000 : 1.03 * stock; \
		printf "%-6s %9d bytes, %5.1f %% of stock%s\n", $$2, $$1, 100 * $$1 / stock, ($$1 > most ? ", too large" : ""); \
		if ($$1 > most) bad = 1 } END { exit bad }'

.PHONY: run
run: ## serve Corefile.example
	$(GO) run ./build -conf Corefile.example

.PHONY: test
test: ## run all tests, with what they need installed first
	test/run

.PHONY: cluster
cluster: ## run the tests with a real Kubernetes API server only; builds one first
	test/run -run 'RealCluster|Manifests' -v

.PHONY: bench
bench: ## print what a query costs, with healthforward and with forward
	$(GO) test -run '^$$' -bench . ./plugin/...

.PHONY: failover
failover: ## play what befalls upstreams, with healthforward and with forward; PLAY=REGEXP chooses
	$(GO) test -run '^$$' -bench 'Failover/$(PLAY)' -benchtime 1x -timeout 3h ./test $(if $(LONG),-args -failover.long)

.PHONY: outage
outage: ## take all upstreams of the image away for OUTAGE, at 2000 queries a second in 128 MB of memory
	$(GO) test -v -run 'TestImage/serves/(outage|SIGTERM)' -timeout 1h ./test -args -image.outage $(OUTAGE)

.PHONY: check
check: format tidy-diff generate-diff lint test ## all that CI checks; run it before a push

.PHONY: bump
bump: ## move to another CoreDNS: make bump COREDNS=v1.15.1
	@test -n "$(COREDNS)" || { echo "to which one? make bump COREDNS=v1.15.1" >&2; exit 1; }
	@# What they changed in their plugin.cfg is changed in ours; where git cannot do that it says so.
	set -e; base=$$(mktemp); trap 'rm -f "$$base"' EXIT; \
	cp "$$($(GO) list -m -f '{{.Dir}}' $(UPSTREAM))/plugin.cfg" "$$base"; \
	$(GO) get $(UPSTREAM)@$(COREDNS); \
	git merge-file plugin.cfg "$$base" "$$($(GO) list -m -f '{{.Dir}}' $(UPSTREAM))/plugin.cfg"
	$(GO) generate ./build
	$(GO) mod tidy # now that only plugins are named that are there
	@test "$$($(GO) list -m -f '{{.Version}}' $(UPSTREAM))" = "$(COREDNS)" || { echo "something needs another CoreDNS than $(COREDNS)" >&2; exit 1; }
	$(GO) test -run Committed ./build/internal/plugincfg
	$(GO) test -run 'PropertyOfForward|AgreeOnCorefiles' ./plugin/healthforward
	$(GO) test -race -run 'OrderIs|EveryDirective' ./test
	@echo "now make check, and say it in CHANGELOG.md and wherever: git grep -n 'CoreDNS 1[.]'"

.PHONY: format
format: ## fail if a file is not as gofmt writes it
	@files=$$(gofmt -l .); if [ -n "$$files" ]; then echo "not formatted by gofmt:"; echo "$$files"; exit 1; fi

.PHONY: tidy-diff
tidy-diff: ## fail if go.mod and go.sum are not what go mod tidy writes
	$(GO) mod tidy -diff
	$(GO) -C test/kubernetes mod tidy -diff
	$(GO) -C build/tools mod tidy -diff

.PHONY: generate-diff
generate-diff: ## fail if they are not what plugin.cfg generates
	$(GO) test -run Committed ./build/internal/plugincfg

.PHONY: lint
lint: ## run golangci-lint, pinned
	GOFLAGS="$$($(GO) env GOFLAGS) $(RACE)" $(GO) run $(RACE)=false $(GOLANGCI_LINT) run

.PHONY: stress
stress: ## run the tests of what waits and decides 200 times
	$(GO) test -race -shuffle=on -count=200 ./plugin/healthforward/internal/pool
	$(GO) test -race -shuffle=on -count=20 ./plugin/...

.PHONY: fuzz
fuzz: ## fuzz everything that has a fuzz target, 30 s each
	@for pkg in $$($(GO) list ./plugin/...); do \
		for target in $$($(GO) test -list '^Fuzz' $$pkg | grep '^Fuzz' || true); do \
			echo "== $$pkg $$target"; \
			$(GO) test -run '^$$' -fuzz "^$$target\$$" -fuzztime 30s $$pkg || exit 1; \
		done; \
	done

# What an image says of itself: $(call labels,OPTION). The time is that of the commit,
# so that equal sources make equal images.
OCI = org.opencontainers.image
labels = $(1) '$(OCI).title=steadfast' \
	$(1) '$(OCI).description=CoreDNS with searchexpand and healthforward, flavour $(FLAVOUR)' \
	$(1) '$(OCI).licenses=Apache-2.0' \
	$(1) '$(OCI).version=$(or $(VERSION),unreleased)' \
	$(1) '$(OCI).revision=$(shell git rev-parse HEAD)' \
	$(1) '$(OCI).created=$(shell TZ=UTC git log -1 --date=format-local:%Y-%m-%dT%H:%M:%SZ --format=%cd)'

.PHONY: rootfs
rootfs:
	mkdir -p $(DIST)/image
	GOOS=linux GOARCH=$(ARCH) $(BUILD) -o $(DIST)/coredns ./build$(SUFFIX:-%=/%)
	$(GO) run build/rootfs.go -program $(DIST)/coredns -certs $(CERTS) -zones $(ZONES) -out $(DIST)/image/rootfs.tar

.PHONY: image
image: rootfs ## build the container image IMAGE=NAME, with FLAVOUR=full|compat|slim on BASE=IMAGE; needs a Docker engine, no registry
	docker build -f build/Dockerfile --build-arg BASE=$(BASE) $(call labels,--label) -t $(IMAGE) $(DIST)/image

.PHONY: image-archive
image-archive: rootfs ## write that image, for ARCH=amd64|arm64, as an OCI archive that docker load reads too; needs no engine
	$(GO) run build/image.go -name $(IMAGE) -arch $(ARCH) $(call labels,-label) -rootfs $(DIST)/image/rootfs.tar -out $(DIST)/image.tar

.PHONY: packages
packages: ## build .deb, .rpm and .apk for hosts in PACKAGES, of the flavour slim; ARCH=arm64 for another architecture
	mkdir -p $(PACKAGES)
	GOOS=linux GOARCH=$(ARCH) $(BUILD) -o $(PACKAGES)/coredns ./build/slim
	@for format in deb rpm apk; do \
		version=$(PACKAGE_VERSION); \
		if [ $$format = apk ]; then version=$(subst +steadfast.,_p,$(PACKAGE_VERSION)); fi; \
		PACKAGE_PROGRAM=$(PACKAGES)/coredns PACKAGE_ARCH=$(ARCH) PACKAGE_VERSION=$$version \
			SOURCE_DATE_EPOCH=$(PACKAGE_DATE) $(TOOL) nfpm package \
			--config build/systemd/package/nfpm.yaml --packager $$format --target $(PACKAGES)/ || exit 1; \
	done
	rm $(PACKAGES)/coredns

.PHONY: release
release: ## make all that a release consists of in DIST/VERSION, for VERSION=v1.15.0-steadfast.N
	GO='$(GO)' build/release '$(VERSION)' '$(DIST)/$(VERSION)'
