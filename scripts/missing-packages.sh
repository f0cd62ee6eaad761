#!/bin/sh
# Prints the Debian packages that `make test` needs and this machine lacks, one
# a line: the one list of them, for .ci/run to install and for test.sh to name.
set -eu
PATH=$PATH:/usr/sbin:/sbin # a daemon and the account tools are not on everyone's PATH

need() { # need PACKAGE COMMAND…: the package, unless all its commands are here
	package=$1
	shift
	for command; do
		command -v "$command" >/dev/null || { echo "$package" && return; }
	done
}

need make make
need git git
need gcc gcc # the race detector links with it
need shellcheck shellcheck
need python3 python3
need nodejs node
need jq jq
need curl curl
need openssh-client ssh ssh-keygen

if [ "$(uname -s)" = Linux ]; then
	need strace strace
	need openssh-server sshd
	[ -e /usr/include/limits.h ] || echo libc6-dev
	if [ "$(id -u)" = 0 ]; then
		need passwd useradd userdel
		need util-linux setpriv unshare
	fi
fi
