# shellcheck shell=bash
# A kernel that an emulated processor boots in two seconds instead of seven: Debian's source, with what the small
# guest needs and no more. Sourced by make.sh.

build() { # WORK SOURCE
    local work=$1 src=$2 source tree option
    source=$(apt-cache depends --important linux-source | sed -n 's/^ *Depends: \(linux-source-[0-9].*\)/\1/p')
    [ -n "$source" ] || die "apt does not know linux-source; run apt-get update"
    # apt refuses to drop its rights where its user cannot write, which only costs a warning.
    (cd "$work" && run apt-get download -q -o APT::Sandbox::User=root "$source")
    run dpkg-deb -x "$work/$source"_*.deb "$work"
    tree=$work/tree
    mkdir "$tree"
    run tar -xf "$work/usr/src/$source.tar.xz" -C "$tree" --strip-components=1
    run make -C "$tree" -s tinyconfig
    (cd "$tree" && run scripts/kconfig/merge_config.sh -m .config "$src/config")
    run make -C "$tree" -s olddefconfig
    # An option that another release has no more, or has under conditions, would be left out silently.
    while read -r option; do
        grep -qxF "$option" "$tree/.config" || die "the kernel of $source has no $option"
    done < <(grep '^CONFIG_' "$src/config")
    # The same file each time.
    run env KBUILD_BUILD_TIMESTAMP=@0 KBUILD_BUILD_USER=root KBUILD_BUILD_HOST=small \
        make -C "$tree" -s -j "$(nproc)" bzImage
    mv "$tree/arch/x86/boot/bzImage" "$work/result"
}
