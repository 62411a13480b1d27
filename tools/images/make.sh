#!/bin/bash
# Print the path of a guest image, made from Debian packages where it is not there yet, or of the small one's kernel.
# usage: make.sh debian|small|kernel
# shellcheck source=tools/common.sh
. "$(dirname "$0")/../common.sh"
IMAGES_SRC=$TOP/tools/images

name=${1:-}
case $name in
    debian) parts=(make.sh disk.sh sources.sh debian) suffix=.qcow2 ;;
    small) parts=(make.sh disk.sh small kernel) suffix=.qcow2 ;;
    kernel) parts=(make.sh kernel) suffix='' ;;
    *) die "usage: make.sh debian|small|kernel" ;;
esac

# PATH of a login shell may lack the file system tools.
PATH=$PATH:/usr/sbin:/sbin
umask 022

# Editors' backups do not count.
key=$(cd "$IMAGES_SRC" && find "${parts[@]}" -type f -not -name '*~' -not -name '.*' -print0 \
    | sort -z | xargs -0 sha256sum | sha256sum | cut -c1-16)
store=$BOOTCACHE_HOME/images
image=$store/$name-$key$suffix
mkdir -p "$store"

exec 9>"$store/$name.lock"
if [ ! -e "$image" ]; then
    flock -n 9 || { say "waiting for another make.sh $name"; flock 9; }
fi
if [ -e "$image" ]; then
    echo "$image"
    exit
fi

[ "$(id -u)" = 0 ] || die "run as root: files in the image belong to root"
# What a killed maker left is of no use, and the lock says nobody is at work on it.
rm -rf "$store/.$name".*
work=$(mktemp -d "$store/.$name.XXXXXX")
job=
cleanup() {
    trap '' INT TERM HUP
    if [ -n "$job" ]; then
        kill "$job" 2>/dev/null || true
        wait "$job" || true
    fi
    rm -rf "$work"
}
trap cleanup EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP

# In the background, as bash puts off its traps while a command in the foreground runs.
run() {
    "$@" >&2 </dev/null &
    job=$!
    wait "$job" || { job=; die "failed: $1"; }
    job=
}

# shellcheck source=tools/images/disk.sh
. "$IMAGES_SRC/disk.sh"
# shellcheck source=tools/images/sources.sh
. "$IMAGES_SRC/sources.sh"
# shellcheck source=/dev/null  # one of the three
. "$IMAGES_SRC/$name/build.sh"

say "making $name"
started=$SECONDS
build "$work" "$IMAGES_SRC/$name"
mv "$work/result" "$image"
say "made $image in $((SECONDS - started)) s"
echo "$image"
