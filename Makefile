# What can be done here. `make test` is everything that must hold.

GO ?= go
export FUZZTIME ?= 3s
VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo unknown)

.PHONY: build test lint unit fuzz bench demo install clean

build: ## the programs, into bin/
	CGO_ENABLED=0 $(GO) build -trimpath -buildvcs=false -ldflags '-X hawser/internal/cli.version=$(VERSION)' -o bin/ ./cmd/...

test: ## lint, unit and fuzz
	@scripts/test.sh

lint: ## formatting, vet, staticcheck, shellcheck, other platforms
	@scripts/test.sh lint

unit: ## every test, as root and as an unprivileged user
	@scripts/test.sh unit

fuzz: ## every fuzz target for FUZZTIME
	@scripts/test.sh fuzz

bench: ## the contract's bars against their floors, then every benchmark
	$(GO) run ./tests/bench
	$(GO) test -run '^$$' -bench . -benchmem ./...

demo: build ## a walk through what the programs do
	@scripts/demo.sh

install: build ## the programs and the names that peers call, into $(ROOT)/bin
	@scripts/install.sh bin "$(ROOT)"

clean:
	rm -rf bin
