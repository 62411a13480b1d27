#!/bin/bash
# Print the path of a guest image of the catalogue, made from Debian packages where it is not there yet.
# usage: catalogue.sh NAME          its path
#        catalogue.sh --list        all names
#        catalogue.sh --cached      the names whose images are there
#        catalogue.sh --units NAME  the services without which it asks for no login
# The names and what is in each: catalogue/images.
# shellcheck source=tools/common.sh
. "$(dirname "$0")/../common.sh"
IMAGES_SRC=$TOP/tools/images
CATALOGUE=$IMAGES_SRC/catalogue

# shellcheck source=tools/images/sources.sh
. "$IMAGES_SRC/sources.sh"

# PATH of a login shell may lack the file system tools.
PATH=$PATH:/usr/sbin:/sbin
umask 022
store=$BOOTCACHE_HOME/images

names() { awk '!/^#/ && NF { print $1 }' "$CATALOGUE/images"; }

entry() { # NAME
    local line
    line=$(awk -v name="$1" '!/^#/ && $1 == name' "$CATALOGUE/images")
    [ -n "$line" ] || die "there is no image '$1'; catalogue.sh --list prints the names"
    read -r _ release kernel units packages <<<"$line"
    [ "$units" != - ] || units=
}

# The security archive of a release that is over may list a metapackage that it no longer has.
base_packages() {
    grep -v '^#' "$CATALOGUE/base" | if [ "$release" = bullseye ]; then sed 's|^linux-image.*|&/bullseye|'; else cat; fi
}

# Sets base, a tar file that all images of the release begin with.
make_base() {
    base=$(base_path)
    exec 8>"$store/base-$release.lock"
    flock 8
    if [ ! -e "$base" ]; then
        say "making the base of $release"
        apt_sources "$release" "$work/apt"
        # INITRD: the kernel's package would make the initramfs, and again each later package that has a hook in it.
        INITRD=No run mmdebstrap --quiet --mode=root --variant=minbase --format=tar \
            --dpkgopt=force-unsafe-io --aptopt='Acquire::Languages "none"' \
            --aptopt='Apt::Install-Recommends "false"' --include="$(base_packages | paste -sd,)" \
            "$release" "$work/base.tar" "$work"/apt.*
        # Of its older versions nobody will ask again.
        rm -f "$store/base-$release"-*.tar
        mv "$work/base.tar" "$base"
    fi
    exec 8>&-
}

base_path() {
    echo "$store/base-$release-$({ declare -f apt_sources make_base; base_packages; } | sha256sum | cut -c1-16).tar"
}

# An image is made again only for a change of what is in it.
image_path() { # NAME
    local key
    key=$({
        basename "$(base_path)"
        declare -f build base_packages
        echo "$1 $release $kernel $units $packages"
        cat "$IMAGES_SRC/disk.sh" "$CATALOGUE/install" "$IMAGES_SRC/debian/cloud.cfg"
        if [ -e "$CATALOGUE/extra/$1" ]; then cat "$CATALOGUE/extra/$1"; fi
    } | sha256sum | cut -c1-16)
    echo "$store/$1-$key.qcow2"
}

build() {
    local digest uuid used
    mkdir "$work/root"
    run tar -C "$work/root" --xattrs --xattrs-include='*' --numeric-owner -xf "$base"
    digest=$(printf %s "$name" | sha256sum)
    uuid=5b007cac-${digest:0:4}-4${digest:4:3}-8${digest:7:3}-${digest:10:12}
    # Mounts and whatever a package's script starts end with this process.
    run unshare --mount --uts --pid --fork --kill-child sh "$CATALOGUE/install" "$work/root" "$IMAGES_SRC" "$name" \
        "$uuid" "$kernel" "$units" "$packages"
    grub_files "$work/root"
    used=$(du -sm "$work/root" | cut -f1)
    # Room for a GiB more, in whole quarters of one.
    make_disk "$work/root" "$work" $(((used * 5 / 4 + 1024 + 255) / 256 * 256)) "$uuid"
}

case ${1:-} in
    --list) names; exit ;;
    --cached)
        while read -r name; do
            entry "$name"
            if [ -e "$(image_path "$name")" ]; then echo "$name"; fi
        done < <(names)
        exit
        ;;
    --units) entry "${2:-}"; echo "${units//,/ }"; exit ;;
    '' | -*) die "usage: catalogue.sh NAME | --list | --cached | --units NAME" ;;
esac
name=$1
entry "$name"
image=$(image_path "$name")
mkdir -p "$store"

exec 9>"$store/$name.lock"
if [ ! -e "$image" ]; then
    flock -n 9 || { say "waiting for another catalogue.sh $name"; flock 9; }
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
        # unshare puts off the other signals until its child has ended, which this one ends.
        kill -HUP "$job" 2>/dev/null || true
        wait "$job" || true
    fi
    rm -rf "$work"
}
trap cleanup EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP

# In the background, as bash puts off its traps while a command in the foreground runs.
run() {
    "$@" >&2 </dev/null 8>&- 9>&- &
    job=$!
    wait "$job" || { job=; die "failed: $1"; }
    job=
}

# shellcheck source=tools/images/disk.sh
. "$IMAGES_SRC/disk.sh"

say "making the image $name"
started=$SECONDS
make_base
build
mv "$work/result" "$image"
say "made $image in $((SECONDS - started)) s"
echo "$image"
