# shellcheck shell=bash
# A guest that boots in seconds and checks its own disk: Debian's kernel and busybox. Sourced by make.sh.

SMALL_MIB=512
SMALL_UUID=5b007cac-0000-4000-8000-000000000001

build() { # WORK SOURCE
    local work=$1 src=$2 root=$1/root initramfs=$1/initramfs debs=$1/debs kernel version
    mkdir -p "$root" "$initramfs" "$debs"
    kernel=$(apt-cache depends --important linux-image-cloud-amd64 | sed -n 's/^ *Depends: \(linux-image-[0-9].*\)/\1/p')
    [ -n "$kernel" ] || die "apt does not know linux-image-cloud-amd64; run apt-get update"
    # apt refuses to drop its rights where its user cannot write, which only costs a warning.
    (cd "$debs" && run apt-get download -q -o APT::Sandbox::User=root "$kernel" busybox-static)
    for deb in "$debs"/linux-image-*.deb; do run dpkg-deb -x "$deb" "$work/kernel"; done
    for deb in "$debs"/busybox-static_*.deb; do run dpkg-deb -x "$deb" "$work/busybox"; done
    version=$(basename "$work"/kernel/boot/vmlinuz-*)
    version=${version#vmlinuz-}
    # Since Debian 13 packages have usr/bin and usr/lib only.
    local busybox=$work/busybox/bin/busybox applet
    [ -e "$busybox" ] || busybox=$work/busybox/usr/bin/busybox
    [ -e "$work/kernel/lib" ] || ln -s usr/lib "$work/kernel/lib"

    mkdir -p "$initramfs"/{bin,dev,proc,sys,root}
    cp "$busybox" "$initramfs/bin/"
    install -m 755 "$src/initramfs-init" "$initramfs/init"
    small_modules "$work/kernel" "$version" "$initramfs" "$busybox"
    mkdir -p "$root"/{bin,boot/grub,dev,etc/acpi/PWRF,proc,sbin,sys,tmp,var}
    (cd "$initramfs" && find . | sort | "$busybox" cpio -o -H newc -R 0:0 2>/dev/null) >"$root/boot/initrd.img"
    cp "$work/kernel/boot/vmlinuz-$version" "$root/boot/vmlinuz"
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
    run python3 "$src/data.py" "$root"

    make_disk "$root" "$work" "$SMALL_MIB" "$SMALL_UUID"
}

# ext4 and its checksums are part of Debian's kernel itself, as other modules are in one release or the next.
small_modules() { # KERNEL VERSION INITRAMFS BUSYBOX
    local tree=lib/modules/$2 module path
    # busybox's programs need not know of compressed modules.
    find "$1/$tree/" -name '*.ko.xz' -exec xz -d {} +
    "$4" depmod -b "$1" "$2"
    # By it modprobe knows what is part of the kernel.
    install -D -m 644 "$1/$tree/modules.builtin" "$3/$tree/modules.builtin"
    for module in virtio_pci virtio_blk button evdev; do
        if grep -q "/$module\.ko\$" "$1/$tree/modules.builtin"; then continue; fi
        sed -n "s|^\\([^:]*/$module\\.ko\\):|\\1|p" "$1/$tree/modules.dep" | tr ' ' '\n' | sed '/^$/d' \
            | while read -r path; do install -D -m 644 "$1/$tree/$path" "$3/$tree/$path"; done
        [ -n "$(find "$3/$tree" -name "$module.ko")" ] || die "no module $module in $2"
    done
    "$4" depmod -b "$3" "$2"
}
