#!/bin/bash
# Print the path of the small guest on a disk that UEFI boots, made where it is not there yet: GPT, its root, and an EFI
# system partition whose boot loader is the guest's kernel, which has the initramfs in it.
# shellcheck source=tools/common.sh
. "$(dirname "$0")/../common.sh"
IMAGES_SRC=$TOP/tools/images
MIB=1048576
# FAT16 takes no less than 4085 clusters, and no firmware refuses it.
ESP_MIB=32

# PATH of a login shell may lack the file system tools.
PATH=$PATH:/usr/sbin:/sbin
umask 022

small=$("$IMAGES_SRC/make.sh" small)
store=$BOOTCACHE_HOME/images
key=$({ basename "$small"; cat "$IMAGES_SRC"/{uefi.sh,uefi/config,kernel/*}; } | sha256sum | cut -c1-16)
image=$store/uefi-$key.qcow2
exec 9>"$store/uefi.lock"
flock 9
if [ ! -e "$image" ]; then
    for command in mkfs.vfat mcopy; do
        command -v "$command" >/dev/null || die "there is no $command; run apt-get install dosfstools mtools"
    done
    # What a killed maker left is of no use, and the lock says nobody is at work on it.
    rm -rf "$store/.uefi".*
    work=$(mktemp -d "$store/.uefi.XXXXXX")
    trap 'rm -rf "$work"' EXIT
    run() { "$@" >&2 </dev/null || die "failed: $1"; }
    # shellcheck source=tools/images/kernel/build.sh
    . "$IMAGES_SRC/kernel/build.sh"

    say "making uefi"
    raw=$work/disk.raw esp=$work/esp.img
    run qemu-img convert -f qcow2 -O raw "$small" "$raw"
    size=$(stat -c %s "$raw")
    run debugfs -R "dump /boot/initrd.img $work/initramfs.cpio" "$raw?offset=$MIB"
    mkdir "$work/source"
    { cat "$IMAGES_SRC"/{kernel,uefi}/config; echo "CONFIG_INITRAMFS_SOURCE=\"$work/initramfs.cpio\""; } \
        >"$work/source/config"
    build "$work" "$work/source"
    run mkfs.vfat -C -n ESP "$esp" $((ESP_MIB * 1024))
    run mmd -i "$esp" ::EFI ::EFI/BOOT
    run mcopy -i "$esp" "$work/result" ::EFI/BOOT/BOOTX64.EFI
    # The root stays where it is; behind the partitions is the table's copy.
    run truncate -s $((size + (ESP_MIB + 1) * MIB)) "$raw"
    printf 'label: gpt\nstart=2048, size=%d, type=linux\nstart=%d, size=%d, type=uefi\n' \
        $((size / 512 - 2048)) $((size / 512)) $((ESP_MIB * MIB / 512)) | sfdisk -q --no-tell-kernel --wipe always "$raw" >&2
    run dd if="$esp" of="$raw" bs=1M seek=$((size / MIB)) conv=notrunc,sparse status=none
    run qemu-img convert -f raw -O qcow2 "$raw" "$work/disk.qcow2"
    mv "$work/disk.qcow2" "$image"
fi
echo "$image"
