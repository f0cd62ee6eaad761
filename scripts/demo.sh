#!/usr/bin/env bash
# demo.sh: the life of one package, in a throwaway home, with the example in
# examples/process-event-extension. Prints each command as a person would type
# it, and what it said. Needs bin/ (make build) and python3.
set -euo pipefail
cd "$(dirname "$0")/.."

if ! command -v python3 >/dev/null; then
	echo "demo.sh: the example package is a Python program: install python3" >&2
	exit 1
fi
export PATH=$PWD/bin:$PATH

# Below /tmp by its real name: a package is never bound through a link.
work=$(cd "$(mktemp -d "${TMPDIR:-/tmp}/hawser-demo.XXXXXX")" && pwd -P)
trap 'fm-procevent sweep-home >/dev/null || true; chmod -R u+w "$work"; rm -rf "$work"' EXIT
export FM_HOME=$work/home FM_PROCEVENT_CLAIM_ROOT=$work/claims
mkdir -m 700 "$FM_HOME"
umask 022 # a package that others may write to is refused

# say COMMAND: shows the command and runs it as it was shown.
say() {
	printf '\n$ %s\n' "$1"
	eval "$1"
}

# digest NAME TEXT: the value of one printed line.
digest() { sed -n "s/^$1: //p" <<<"$2"; }

echo "# A package is a directory outside every Git project. Copy the example out of this one."
say "cp -r examples/process-event-extension $work/file-signal"

echo
echo "# Bind it: validated, copied read-only under its digest, handshaken, enabled."
say "fm-extension bind $work/file-signal --adapter file-signal --trust-same-user-code | tee $work/bound"
binding=$(digest binding-digest "$(cat "$work/bound")")
say "fm-extension list"
say "fm-extension verify"

echo
echo "# Every operation names the exact identity that it expects."
say "fm-extension resolve-process-event file-signal | tee $work/resolved"
IFS=$'\t' read -r _ id version capability package _ <"$work/resolved"
expect="--expect-extension $id --expect-version $version --expect-capability-version $capability --expect-package-digest $package --expect-binding-digest $binding"

echo
echo "# Wait for a signal: the file appears a moment later, whole, by a rename."
(sleep 1 && printf 'the build is done\n' >"$work/signal.new" && mv "$work/signal.new" "$work/signal") &
say "fm-extension process-event file-signal source.poll $expect --source-id demo --config-ref file:$work/signal"
wait

echo
echo "# A source waits by itself: registered once, and started by a pass."
rm "$work/signal"
say "fm-procevent register-extension file-signal demo --config-ref file:$work/signal"
say "fm-procevent reconcile"
say "fm-procevent list"

echo
echo "# Its event is captured durably, then announced by one line. This one was its last."
say "echo 'the build is done' >$work/signal.new && mv $work/signal.new $work/signal"
until [ "$(fm-procevent list)" = "no sources registered" ]; do sleep 0.1; done
say "cat $FM_HOME/state/.wake-queue"
say "cat $FM_HOME/state/procevent-inbox/demo.1.result"
say "fm-procevent classify $FM_HOME/state/procevent-inbox/demo.1.result"
say "fm-procevent list"

echo
echo "# Until somebody acknowledges it, its binding stays."
say "fm-extension retire-binding $id --if-binding-digest $binding 2>&1 || true"
say "fm-procevent handled demo 1"

echo
echo "# A source that still waits is ended by the token of exactly this registration."
say "fm-procevent register-extension file-signal demo --config-ref file:$work/never | tee $work/registered"
say "fm-procevent reconcile"
say "$(digest retire "$(cat "$work/registered")")"

echo
echo "# Retire the binding by its exact identity, and bring it back."
say "fm-extension retire-binding $id --if-binding-digest $binding"
say "fm-extension list"
say "fm-extension restore-binding $id --binding-digest $binding"
say "fm-extension verify $id"
