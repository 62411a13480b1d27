# shellcheck shell=bash
# Debian 12 much as its own cloud image is: systemd, cloud-init, several hundred MB of which a boot reads a small part.
# Sourced by make.sh.

DEBIAN_MIB=2400
DEBIAN_UUID=5b007cac-0000-4000-8000-000000000002
DEBIAN_SUITE=bookworm

# mmdebstrap's variant "important" brings systemd, udev, ifupdown, vim-tiny and the like.
DEBIAN_CONTENT=(
    linux-image-cloud-amd64 initramfs-tools zstd busybox
    systemd-sysv libpam-systemd dbus cloud-init cloud-guest-utils openssh-server sudo ca-certificates
    locales man-db manpages bash-completion perl git rsync curl wget tcpdump bind9-dnsutils lsof psmisc screen
    python3-venv python3-apt unattended-upgrades apt-listchanges reportbug qemu-guest-agent gdisk dosfstools
    pciutils socat strace file bzip2 xz-utils lsb-release uuid-runtime
)

build() { # WORK SOURCE
    local work=$1 src=$2 root=$1/root sources=()
    # The host's own mirror. Sources of others than Debian are of no use here, and may not have this suite.
    mapfile -t sources < <(find /etc/apt/sources.list /etc/apt/sources.list.d -type f \
        \( -name '*.list' -o -name '*.sources' \) -exec grep -lw "$DEBIAN_SUITE" {} + 2>/dev/null)
    [ ${#sources[@]} -gt 0 ] || die "no apt source of the host has $DEBIAN_SUITE"

    # shellcheck disable=SC2016  # $1 is for the shell that runs the hook
    # INITRD: the kernel's package would make the initramfs, and again each later package that has a hook in it.
    INITRD=No run mmdebstrap --quiet --mode=root --variant=important \
        --dpkgopt=force-unsafe-io --aptopt='Acquire::Languages "none"' --aptopt='Apt::Install-Recommends "false"' \
        --include="$(IFS=,; echo "${DEBIAN_CONTENT[*]}")" \
        --essential-hook='echo "man-db man-db/auto-update boolean false" | chroot "$1" debconf-set-selections' \
        --customize-hook="sh '$src/customize' \"\$1\" '$src' $DEBIAN_UUID" \
        "$DEBIAN_SUITE" "$root" "${sources[@]}"
    grub_files "$root"
    make_disk "$root" "$work" "$DEBIAN_MIB" "$DEBIAN_UUID"
}
