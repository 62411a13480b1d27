# shellcheck shell=bash
# Debian 12 much as its own cloud image is: systemd, cloud-init, several hundred MB of which a boot reads a small part.
# The same on each host, whatever Debian that has. Sourced by make.sh.

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
    local work=$1 src=$2 root=$1/root
    apt_sources "$DEBIAN_SUITE" "$work/apt"

    # shellcheck disable=SC2016  # $1 is for the shell that runs the hook
    # INITRD: the kernel's package would make the initramfs, and again each later package that has a hook in it.
    INITRD=No run mmdebstrap --quiet --mode=root --variant=important \
        --dpkgopt=force-unsafe-io --aptopt='Acquire::Languages "none"' --aptopt='Apt::Install-Recommends "false"' \
        --include="$(IFS=,; echo "${DEBIAN_CONTENT[*]}")" \
        --essential-hook='echo "man-db man-db/auto-update boolean false" | chroot "$1" debconf-set-selections' \
        --customize-hook="sh '$src/customize' \"\$1\" '$src' $DEBIAN_UUID" \
        "$DEBIAN_SUITE" "$root" "$work"/apt.*
    grub_files "$root"
    make_disk "$root" "$work" "$DEBIAN_MIB" "$DEBIAN_UUID"
}
