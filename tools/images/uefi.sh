#!/bin/bash
# Print the path of the small guest on a disk that UEFI boots, made where it is not there yet: GPT, the guest's own root,
# and an EFI system partition with GRUB and Debian's kernel, as the small guest's own one knows neither.
# shellcheck source=tools/common.sh
. "$(dirname "$0")/../common.sh"
IMAGES_SRC=$TOP/tools/images
MIB=1048576
ESP_MIB=48
MODULES=(virtio_pci virtio_blk ext4 button evdev)

# PATH of a login shell may lack the file system tools.
PATH=$PATH:/usr/sbin:/sbin
umask 022

run() { "$@" >&2 </dev/null || die "failed: $1"; }

# The modules, and all that these need, in their order.
module_files() { # ROOT VERSION
    local module
    for module in "${MODULES[@]}"; do modprobe -d "$1" -S "$2" --show-depends "$module"; done \
        | awk '$1 == "insmod" && !seen[$2]++ { print $2 }'
}

make_modules() { # WORK ROOT VERSION
    local work=$1 busybox=$1/busybox tree=$1/initramfs number=100 file name
    mkdir -p "$tree/modules"
    install -m 755 "$IMAGES_SRC/uefi/init" "$tree/modules/"
    run depmod -b "$2" "$3"
    while read -r file; do
        name=$(basename "$file" .xz)
        # One that is not compressed stays as it is.
        xz -dcf "$file" >"$tree/modules/$number-$name"
        number=$((number + 1))
    done < <(module_files "$2" "$3")
    [ "$number" -gt 100 ] || die "the kernel $3 has no modules for its disk"
    run debugfs -R "dump /bin/busybox $busybox" "$work/disk.raw?offset=$MIB"
    chmod +x "$busybox"
    (cd "$tree" && find . | sort | "$busybox" cpio -o -H newc -R 0:0 2>/dev/null) >"$work/modules.img"
}

build() { # WORK
    local work=$1 raw=$1/disk.raw esp=$1/esp.img package version size
    package=$(apt-cache depends --important linux-image-cloud-amd64 | sed -n 's/^ *Depends: \(linux-image-[0-9].*\)/\1/p')
    [ -n "$package" ] || die "apt does not know linux-image-cloud-amd64; run apt-get update"
    # apt refuses to drop its rights where its user cannot write, which only costs a warning.
    (cd "$work" && run apt-get download -q -o APT::Sandbox::User=root "$package")
    mkdir "$work/root"
    # Since Debian 13 packages have usr/lib only; modprobe looks in lib.
    ln -s usr/lib "$work/root/lib"
    run dpkg-deb -x "$work/$package"_*.deb "$work/kernel"
    mkdir -p "$work/root/usr/lib"
    mv "$work"/kernel/{usr/,}lib/modules "$work/root/usr/lib/" 2>/dev/null || true
    version=${package#linux-image-}

    run qemu-img convert -f qcow2 -O raw "$small" "$raw"
    size=$(stat -c %s "$raw")
    make_modules "$work" "$work/root" "$version"
    # Of the guest's own initramfs and the modules the kernel makes one. GRUB reads the file as it is, without comments:
    # it has no scripts in there. quiet, as the kernel's lines would run into those that the tests look for; and an
    # emulated processor that gets little time has no timer that the kernel's check likes.
    run grub-mkimage -O x86_64-efi -o "$work/BOOTX64.EFI" -p /EFI/BOOT -c "$IMAGES_SRC/uefi/grub.cfg" \
        part_gpt fat ext2 search search_label linux boot
    run mkfs.vfat -C -n ESP "$esp" $((ESP_MIB * 1024))
    run mmd -i "$esp" ::EFI ::EFI/BOOT
    run mcopy -i "$esp" "$work/BOOTX64.EFI" ::EFI/BOOT/
    run mcopy -i "$esp" "$work/kernel/boot/vmlinuz-$version" ::vmlinuz
    run mcopy -i "$esp" "$work/modules.img" ::
    # The root stays where it is; behind the partitions is the table's copy.
    run truncate -s $((size + (ESP_MIB + 1) * MIB)) "$raw"
    printf 'label: gpt\nstart=2048, size=%d, type=linux\nstart=%d, size=%d, type=uefi\n' \
        $((size / 512 - 2048)) $((size / 512)) $((ESP_MIB * MIB / 512)) | sfdisk -q --no-tell-kernel --wipe always "$raw" >&2
    run dd if="$esp" of="$raw" bs=1M seek=$((size / MIB)) conv=notrunc,sparse status=none
    run qemu-img convert -f raw -O qcow2 "$raw" "$work/result"
}

small=$("$IMAGES_SRC/make.sh" small)
store=$BOOTCACHE_HOME/images
key=$({ basename "$small"; cat "$IMAGES_SRC/uefi.sh" "$IMAGES_SRC"/uefi/*; } | sha256sum | cut -c1-16)
image=$store/uefi-$key.qcow2
exec 9>"$store/uefi.lock"
flock 9
if [ ! -e "$image" ]; then
    # What a killed maker left is of no use, and the lock says nobody is at work on it.
    rm -rf "$store/.uefi".*
    work=$(mktemp -d "$store/.uefi.XXXXXX")
    trap 'rm -rf "$work"' EXIT
    say "making uefi"
    build "$work"
    mv "$work/result" "$image"
fi
echo "$image"
