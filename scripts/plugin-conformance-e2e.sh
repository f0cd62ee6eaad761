#!/usr/bin/env bash
# plugin-conformance-e2e.sh: builds the conformance suite of the Agent Forge plugin
# protocol and runs it against the plugins that are shipped: the reference plugin,
# the Python example, and the Codex plugin with a stand-in for Codex. All three are
# judged; the exit is 1 when one fails.
set -euo pipefail
cd "$(dirname "$0")/.."

bin=$(mktemp -d)
trap 'rm -rf "$bin"' EXIT
go build -buildvcs=false -o "$bin/" ./cmd/forge-plugin-conformance ./cmd/forge-ref-plugin ./cmd/forge-codex-plugin

status=0
judge() {
	echo "# $*"
	"$bin/forge-plugin-conformance" "$@" || status=1
}
judge "$bin/forge-ref-plugin"
judge ./examples/forge-plugin-v1.py
export CODEX_BIN=$PWD/forge/codex/testdata/fake-codex
judge -operation workspace_edit "$bin/forge-codex-plugin"
exit $status
