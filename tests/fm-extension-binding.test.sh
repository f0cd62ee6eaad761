#!/usr/bin/env bash
# The complete path of the example package, through the built programs: bind,
# register, reconcile, signal, capture, classify, handled, retire, restore.
# Reads as documentation. HAWSER_BIN names the directory of the programs.
set -euo pipefail

here=$(cd "$(dirname "$0")/.." && pwd -P)
PATH=${HAWSER_BIN:-$here/bin}:$PATH

fail() {
	echo "FAIL: $*" >&2
	exit 1
}

# expect NAME GOT PATTERN: what was said is what is promised.
expect() {
	# shellcheck disable=SC2053 # the pattern is one
	[[ $2 == $3 ]] || fail "$1: got '$2', want '$3'"
}

# until_true COMMAND…: waits for a condition, not for a number of seconds.
until_true() {
	local tries=0
	until "$@"; do
		tries=$((tries + 1))
		[ $tries -lt 600 ] || fail "never became true: $*"
		sleep 0.05
	done
}

# A throwaway home, and claims of its own.
work=$(cd "$(mktemp -d "${TMPDIR:-/tmp}/hawser-binding.XXXXXX")" && pwd -P)
trap 'fm-procevent sweep-home >/dev/null 2>&1 || true; chmod -R u+w "$work"; rm -rf "$work"' EXIT
export FM_HOME=$work/home FM_PROCEVENT_CLAIM_ROOT=$work/claims
mkdir -m 700 "$FM_HOME"

# 1. The package is copied outside every Git project, and bound there.
cp -r "$here/examples/process-event-extension" "$work/file-signal"
bound=$(fm-extension bind "$work/file-signal" --adapter file-signal --trust-same-user-code)
expect "bind" "$bound" "bound: org.firstmate.example.file-signal@1.0.0*"
binding=$(sed -n 's/^binding-digest: //p' <<<"$bound")

# 2. A source is registered on the binding; the token is its generation's.
registered=$(fm-procevent register-extension file-signal demo --config-ref "file:$work/signal")
expect "register" "$registered" "registered: demo (file-signal from org.firstmate.example.file-signal@1.0.0)*"
token=$(sed -n 's/^owner-token: //p' <<<"$registered")
expect "list" "$(fm-procevent list)" "*demo file-signal none 0"

# 3. Reconcile starts a runner, once, however often it is called.
expect "reconcile" "$(fm-procevent reconcile)" "reconciled: published=0 started=1 stopped=0 uncertain=0"
expect "reconcile again" "$(fm-procevent reconcile)" "reconciled: published=0 started=0 stopped=0 uncertain=0"
expect "list" "$(fm-procevent list)" "*demo file-signal live 0"
expect "start" "$(fm-procevent start demo)" "already owned: demo"

# While the source is registered, the binding stays.
if refusal=$(fm-extension retire-binding org.firstmate.example.file-signal --if-binding-digest "$binding" 2>&1); then
	fail "the binding of a registered source was retired"
fi
expect "retire-binding" "$refusal" "error\[binding-in-use\]: *"

# 4. The signal: a file that appears whole.
printf 'the build is done\n' >"$work/signal.new"
mv "$work/signal.new" "$work/signal"

# 5. It is captured durably, and then announced by one line. The example calls
# its result terminal, so the source ends by itself.
result=$FM_HOME/state/procevent-inbox/demo.1.result
until_true test -s "$FM_HOME/state/.wake-queue"
expect "captured" "$(cat "$result")" "the build is done"
expect "wake line" "$(cat "$FM_HOME/state/.wake-queue")" $'*\t1\tcheck\tprocevent:demo:1\tcheck: procevent file-signal demo 1'
gone() { [ "$(fm-procevent list)" = "no sources registered" ]; }
until_true gone

# 6. The handling agent asks what it is, and acknowledges it.
expect "classify" "$(fm-procevent classify "$result")" "file-signal"
if fm-procevent binding-retirement-preflight "$binding" 2>/dev/null; then
	fail "the preflight does not see the unhandled result"
fi
expect "handled" "$(fm-procevent handled demo 1)" "handled: demo 1"
expect "handled again" "$(fm-procevent handled demo 1)" "already-handled: demo 1"

# 7. Nothing depends on the binding any more: it is retired, and restored.
expect "preflight" "$(fm-procevent binding-retirement-preflight "$binding")" "binding retirement preflight: ready"
expect "retire source" "$(fm-procevent retire demo --if-absent)" "retired: demo"
expect "retire" "$(fm-extension retire-binding org.firstmate.example.file-signal --if-binding-digest "$binding")" "retired-binding: org.firstmate.example.file-signal $binding*"
expect "list" "$(fm-extension list)" "no extension bindings"
expect "restore" "$(fm-extension restore-binding org.firstmate.example.file-signal --binding-digest "$binding")" "bound: org.firstmate.example.file-signal@1.0.0*"
expect "verify" "$(fm-extension verify)" "verified: org.firstmate.example.file-signal@1.0.0 sha256:*"

# 8. A source that waits is retired by its token, and only by it.
registered=$(fm-procevent register-extension file-signal demo --config-ref "file:$work/never")
newer=$(sed -n 's/^owner-token: //p' <<<"$registered")
expect "reconcile" "$(fm-procevent reconcile)" "reconciled: published=0 started=1 stopped=0 uncertain=0"
if fm-procevent retire demo --if-owner "$token" 2>/dev/null; then
	fail "an older token retired a newer registration"
fi
expect "retire" "$(fm-procevent retire demo --if-owner "$newer")" "retired: demo"
expect "sweep" "$(fm-procevent sweep-home)" "swept: attempted=0"
[ -z "$(ls -A "$FM_HOME/state/extension-invocations")" ] || fail "a record is left"
[ -z "$(find "$FM_PROCEVENT_CLAIM_ROOT" -name '*.claim')" ] || fail "a claim is left"

echo "ok: the example path"
