# shellcheck shell=bash
# A bootable disk from a directory, without mounts or loop devices. Sourced by make.sh.

GRUB=/usr/lib/grub/i386-pc
PART_START=1048576

# Modules as grub-install leaves them: core.img holds what reads the file system, and the rest comes from it.
grub_files() { # ROOT
    mkdir -p "$1/boot/grub/i386-pc"
    cp "$GRUB"/*.mod "$GRUB"/*.lst "$1/boot/grub/i386-pc/"
}

make_disk() { # ROOT WORK MIB UUID
    local root=$1 work=$2 mib=$3 uuid=$4 raw=$2/disk.raw
    truncate -s "${mib}M" "$raw"
    printf 'label: dos\nlabel-id: 0x%s\nstart=2048, type=83, bootable\n' "${uuid%%-*}" | sfdisk -q --no-tell-kernel "$raw" >&2
    # Everything is initialised here, so that the guest's kernel does not write in the background what no test asked for.
    run mke2fs -q -F -t ext4 -b 4096 -L root -U "$uuid" -d "$root" \
        -E "offset=$PART_START,hash_seed=$uuid,lazy_itable_init=0,lazy_journal_init=0" \
        "$raw" "$((mib * 1024 - PART_START / 1024))k"
    grub-mkimage -O i386-pc -o "$work/core.img" -p '(hd0,msdos1)/boot/grub' biosdisk part_msdos ext2
    [ "$(stat -c %s "$work/core.img")" -le $((PART_START - 512)) ] || die "GRUB does not fit before the partition"
    # 440 bytes: the partition table follows. boot.img loads core.img from sector 1, which is what it is built for.
    dd if="$GRUB/boot.img" of="$raw" bs=440 count=1 conv=notrunc status=none
    dd if="$work/core.img" of="$raw" bs=512 seek=1 conv=notrunc status=none
    run qemu-img convert -q -f raw -O qcow2 "$raw" "$work/result"
}
