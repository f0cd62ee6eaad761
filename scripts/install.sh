#!/bin/sh
# install.sh FROM ROOT: the programs in FROM into ROOT/bin, and beside them the .sh
# names by which callers and other hosts know four of them. Those only exec the
# program, by its absolute path: a link to one of them, somewhere on a PATH, works.
#
# Each name is replaced in one step, so that what runs or is called meanwhile is
# the old one or the new one.
set -eu
umask 022

if [ $# -ne 2 ] || [ -z "$2" ]; then
	echo "usage: make install ROOT=/opt/fm, or scripts/install.sh FROM ROOT" >&2
	exit 2
fi
mkdir -p "$2/bin"
bin=$(cd "$2/bin" && pwd -P)

put() { # put NAME: the new content of ROOT/bin/NAME is on stdin
	cat >"$bin/.$1.new"
	chmod 755 "$bin/.$1.new"
	mv -f "$bin/.$1.new" "$bin/$1"
}

for program in "$1"/*; do
	put "${program##*/}" <"$program"
done
quoted=$(printf %s "$bin" | sed "s/'/'\\\\''/g")
for name in fm-extension fm-procevent fm-on fm-remote-entrypoint; do
	printf '#!/bin/sh\nexec '\''%s/%s'\'' "$@"\n' "$quoted" "$name" | put "$name.sh"
done
