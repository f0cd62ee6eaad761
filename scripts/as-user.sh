#!/bin/sh
# as-user.sh TEST-BINARY [ARGUMENT…]
#
# Stands between `go test -exec` and a test binary: runs it as the throwaway
# user of test.sh, in that user's own environment. It stays the same process, so
# that go's timeout and signals reach the tests.
set -eu
umask 022

# go keeps its work directory, two levels up, to itself.
chmod o+x "${1%/*}" "${1%/*/*}"

exec setpriv --reuid="$TEST_USER" --regid="$TEST_USER" --clear-groups \
	env -i USER="$TEST_USER" LOGNAME="$TEST_USER" SHELL=/bin/sh HOME="$TEST_HOME" TMPDIR="$TEST_HOME/tmp" \
	PATH=/usr/local/go/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
	LANG=C.UTF-8 CI="${CI:-}" HAWSER_BIN="$HAWSER_BIN" "$@"
