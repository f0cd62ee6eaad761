#!/usr/bin/env bash
# test.sh [lint] [unit] [fuzz]: what must hold before a change is good; all three
# when none is named.
#
#   lint  formatting, vet, staticcheck, shellcheck, and the other platforms
#   unit  every test with the race detector and, when run as root, once more as
#         an unprivileged user from a copy that this user can read
#   fuzz  every fuzz target for FUZZTIME (3s)
#
# A test may skip where it cannot run, but one that ran nowhere is a failure: as
# root there are two runs to run it in. Otherwise a skip for want of root is only
# counted; so is, where root may not mount even for itself, a skip for want of that. What a test leaves behind, a file or a process, is a failure too.
set -euo pipefail
cd "$(dirname "$0")/.."
umask 022

: "${FUZZTIME:=3s}" "${TEST_TIMEOUT:=20m}"
# The programs are the same wherever they are built, and build where git has
# doubts about the owner of the checkout.
export GOFLAGS="${GOFLAGS:-} -buildvcs=false"

own_mounts=(unshare --mount --propagation private)
allowed_skips='' # none

main() {
	local phases=("$@") phase
	if [ $# -eq 0 ]; then phases=(lint unit fuzz); fi
	for phase in "${phases[@]}"; do
		case $phase in
		lint | unit | fuzz) ;;
		*) echo "test.sh: unknown phase '$phase': lint, unit or fuzz" >&2 && exit 2 ;;
		esac
	done

	require_tools
	# Below /tmp, whatever TMPDIR says: the unprivileged user must reach it.
	work=$(mktemp -d /tmp/hawser-test.XXXXXX)
	trap clean_up EXIT
	trap 'exit 129' HUP
	trap 'exit 130' INT
	trap 'exit 143' TERM
	chmod 755 "$work"
	mkdir "$work/go" "$work/events" "$work/tmp"
	export GOTMPDIR=$work/go # apart from TMPDIR, where only the tests leave something
	go build -o "$work/testsum" ./scripts/testsum

	for phase in "${phases[@]}"; do "$phase"; done
	sum_up
}

require_tools() {
	local missing
	if ! command -v go >/dev/null; then
		echo "go is not on PATH; it is often in /usr/local/go/bin" >&2
		exit 1
	fi
	missing=$(scripts/missing-packages.sh | tr '\n' ' ')
	if [ -n "$missing" ]; then
		echo "tools are missing; on Debian: apt-get install --no-install-recommends $missing" >&2
		exit 1
	fi
}

clean_up() {
	if [ -n "${TEST_USER:-}" ]; then
		# As that user, -1 is every process of that user and no other.
		setpriv --reuid="$TEST_USER" --clear-groups kill -KILL -1 2>/dev/null || true
		userdel --force "$TEST_USER" 2>/dev/null || true
	fi
	# Packages install read-only; a test that died may have left one.
	chmod -R u+w "$work" 2>/dev/null || true
	rm -rf "$work"
}

# step NAME COMMAND…: one line for a step, and its output only when it fails.
step() {
	local name=$1 began=$SECONDS
	shift
	if "$@" >"$work/log" 2>&1 </dev/null; then
		record pass "$name" "$began"
	else
		record fail "$name" "$began"
		tail -n 200 "$work/log" | sed 's/^/    /'
	fi
}

# record pass|fail NAME BEGAN: prints the line, and keeps an event for the sum.
record() {
	tell "$@"
	event "$1" "$2"
}

tell() {
	local word='ok  '
	if [ "$1" = fail ]; then word=FAIL; fi
	printf '%s  %s (%ds)\n' "$word" "$2" $((SECONDS - $3))
}

event() {
	printf '{"Action":"%s","Package":"step","Test":"%s"}\n' "$1" "$2" >>"$work/events/steps"
}

lint() {
	step 'gofmt' formatted
	step 'go vet' go vet ./...
	step 'staticcheck' go tool staticcheck ./...
	step 'shellcheck' check_shell
	step 'darwin/arm64 builds and vets' cross darwin arm64
	step 'linux/arm64 builds and vets' cross linux arm64
}

formatted() {
	local unformatted
	unformatted=$(gofmt -l .)
	echo "$unformatted"
	[ -z "$unformatted" ]
}

check_shell() {
	find . -name .git -prune -o -name testdata -prune -o -type f -print |
		while read -r file; do
			if head -n 1 "$file" | grep -aqE '^#!.*[/ ](ba|da)?sh( |$)'; then printf '%s\0' "$file"; fi
		done | xargs -0 shellcheck
}

cross() {
	GOOS=$1 GOARCH=$2 go build ./... && GOOS=$1 GOARCH=$2 go vet ./...
}

unit() {
	export HAWSER_BIN=$work/bin
	mkdir "$HAWSER_BIN"
	if [ -d cmd ]; then step 'build' go build -o "$HAWSER_BIN/" ./cmd/...; fi
	step 'plugin conformance' scripts/plugin-conformance-e2e.sh
	step 'the example path' tests/fm-extension-binding.test.sh

	if [ "$(id -u)" != 0 ]; then
		allowed_skips=root
		tests 'tests' go test -race
		step 'no file is left' nothing_in "$work/tmp"
		return
	fi
	# Some of root's tests mount a small disk of their own: where only they see it,
	# and where root may, even if this root may not mount here.
	if "${own_mounts[@]}" true 2>/dev/null; then
		tests 'tests as root' "${own_mounts[@]}" go test -race
	else
		allowed_skips='right to mount'
		tests 'tests as root' go test -race
	fi
	step 'no file is left' nothing_in "$work/tmp"
	if [ "$(uname -s)" = Linux ]; then unprivileged; fi
}

# tests NAME GO-TEST…: one run of all tests. sum_up counts them and tells what failed.
tests() {
	local name=$1 began=$SECONDS events=$work/events/$1
	shift
	if TMPDIR=$work/tmp "$@" -json -count=1 -timeout "$TEST_TIMEOUT" ./... >"$events" 2>"$work/log" </dev/null; then
		tell pass "$name" "$began"
		return
	fi
	tell fail "$name" "$began"
	if ! grep -q '"Action":"fail"' "$events"; then # go itself failed
		event fail "$name"
		tail -n 200 "$work/log" | sed 's/^/    /'
	fi
}

# The race detector has had its run; this one is for what only an unprivileged
# user meets: modes that bind, files of others, no capabilities.
unprivileged() {
	local copy=$work/src
	make_user
	step 'copy for the unprivileged user' copy_to "$copy"
	cd "$copy"
	tests 'tests as an unprivileged user' go test -vet=off -exec "$copy/scripts/as-user.sh"
	step 'the example path as an unprivileged user' as_user "$copy/tests/fm-extension-binding.test.sh"
	cd - >/dev/null
	step 'no file of the user is left' nothing_in "$TEST_HOME/tmp"
	step 'no process of the user is left' no_process_of "$(id -u "$TEST_USER")"
}

# as_user SCRIPT: runs a script of the copy as that user.
as_user() {
	setpriv --reuid="$TEST_USER" --regid="$TEST_USER" --clear-groups \
		env -i HOME="$TEST_HOME" TMPDIR="$TEST_HOME/tmp" PATH=/usr/local/bin:/usr/bin:/bin HAWSER_BIN="$HAWSER_BIN" "$@"
}

# The checkout may be where that user cannot look. The copy is root's: a test that
# writes beside its code fails here.
copy_to() {
	mkdir "$1" &&
		tar -cf - --exclude=./.git --exclude=./bin --exclude=./dist . | tar -xf - -C "$1" --no-same-owner &&
		chmod -R a+rX "$1"
}

# A user of this run's own: concurrent runs share nothing, and whatever runs as
# this user was started by these tests. The password is `*`, impossible but not
# locked: sshd turns locked accounts away.
make_user() {
	local user=hawser-test-$$ tries=0
	export TEST_HOME=$work/home
	until useradd --system --user-group --password '*' --no-create-home --home-dir "$TEST_HOME" --shell /bin/sh "$user"; do
		# Another useradd may hold the lock of /etc/passwd.
		tries=$((tries + 1))
		if [ "$tries" = 10 ]; then exit 1; fi
		sleep 1
	done
	export TEST_USER=$user
	mkdir -p "$TEST_HOME/tmp"
	chown -R "$TEST_USER:" "$TEST_HOME"
	chmod 700 "$TEST_HOME" "$TEST_HOME/tmp"
}

nothing_in() {
	local left
	left=$(find "$1" -mindepth 1 -maxdepth 2)
	echo "$left"
	[ -z "$left" ]
}

# A process that was told to end may take a moment; a zombie has ended.
no_process_of() {
	local left='' tries
	for tries in $(seq 50); do
		left=$(cat /proc/[0-9]*/status 2>/dev/null | awk -v uid="$1" '
			$1 == "Name:" { name = $2 }
			$1 == "State:" { state = $2 }
			$1 == "Pid:" { pid = $2 }
			$1 == "Uid:" && $2 == uid && state != "Z" { print pid, name }')
		if [ -z "$left" ]; then return; fi
		sleep 0.1
	done
	echo "after $tries looks:" && echo "$left"
	return 1
}

fuzz() {
	local dir targets target
	for dir in $(find . -name testdata -prune -o -name '*_test.go' -exec grep -l '^func Fuzz' {} + | sed 's|/[^/]*$||' | sort -u); do
		step "fuzz targets of ${dir#./}" go test -list '^Fuzz' "$dir"
		targets=$(grep '^Fuzz' "$work/log" || true)
		for target in $targets; do
			step "fuzz ${dir#./} $target" fuzz_one "$dir" "$target"
		done
	done
}

# The fuzzer now and then takes the end of its own time for a failure: no input
# is written then, and one more look tells.
fuzz_one() {
	try_target "$@" && return
	if grep -q 'context deadline exceeded' "$work/log" && ! grep -q 'Failing input written' "$work/log"; then
		try_target "$@"
		return
	fi
	return 1
}

try_target() {
	go test -run '^$' -fuzz "^$2\$" -fuzztime "$FUZZTIME" -fuzzminimizetime 1s -timeout "$TEST_TIMEOUT" "$1"
}

# sum_up tells what failed and ends with the one line for people and machines.
sum_up() {
	"$work/testsum" -allow-skip "$allowed_skips" "$work"/events/*
}

main "$@"
