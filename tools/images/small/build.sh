# shellcheck shell=bash
# A guest that boots in seconds and checks its own disk: a kernel of its own, and busybox. Sourced by make.sh.

SMALL_MIB=512
SMALL_UUID=5b007cac-0000-4000-8000-000000000001

build() { # WORK SOURCE
    local work=$1 src=$2 root=$1/root initramfs=$1/initramfs debs=$1/debs
    mkdir -p "$root" "$initramfs" "$debs"
    # In place of the shell, so that it ends when that is ended.
    run sh -c 'exec "$1" kernel >"$2"' sh "$IMAGES_SRC/make.sh" "$work/kernel"
    # apt refuses to drop its rights where its user cannot write, which only costs a warning.
    (cd "$debs" && run apt-get download -q -o APT::Sandbox::User=root busybox-static)
    run dpkg-deb -x "$debs"/busybox-static_*.deb "$work/busybox"
    # Since Debian 13 packages have usr/bin only.
    local busybox=$work/busybox/bin/busybox applet
    [ -e "$busybox" ] || busybox=$work/busybox/usr/bin/busybox

    mkdir -p "$initramfs"/{bin,dev,proc,sys,root}
    cp "$busybox" "$initramfs/bin/"
    install -m 755 "$src/initramfs-init" "$initramfs/init"
    mkdir -p "$root"/{bin,boot/grub,dev,etc/acpi/PWRF,proc,sbin,sys,tmp,var}
    (cd "$initramfs" && find . | sort | "$busybox" cpio -o -H newc -R 0:0 2>/dev/null) >"$root/boot/initrd.img"
    cp "$(cat "$work/kernel")" "$root/boot/vmlinuz"
    cp "$src/grub.cfg" "$root/boot/grub/"
    grub_files "$root"

    cp "$busybox" "$root/bin/"
    for applet in $("$busybox" --list); do
        [ "$applet" = busybox ] || ln -s busybox "$root/bin/$applet"
    done
    ln -s ../bin/busybox "$root/sbin/init"
    install -m 755 "$src/rc" "$src/console" "$root/sbin/"
    install -m 644 "$src/inittab" "$src/functions" "$root/etc/"
    # The name under which busybox acpid looks for what the power button does.
    install -m 755 "$src/powerbtn" "$root/etc/acpi/PWRF/00000080"
    run gcc -Wall -Wextra -Werror -O2 -static -s -o "$root/bin/sums" "$src/sums.c"
    run python3 "$src/data.py" "$root" "$root/bin/sums"

    make_disk "$root" "$work" "$SMALL_MIB" "$SMALL_UUID"
}
