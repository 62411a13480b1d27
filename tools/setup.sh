#!/bin/bash
# Install what the demo and the tests need: Debian packages, and Python packages into a virtual
# environment with pinned constraints. Safe to run again: what is there is reused.
set -euo pipefail
# shellcheck source=tools/common.sh
. "$(dirname "$0")/common.sh"

DEBIAN_PACKAGES=(
    qemu-system-x86 qemu-utils qemu-block-extra libvirt-daemon-system libvirt-daemon-driver-qemu libvirt-clients
    rabbitmq-server genisoimage mmdebstrap nbdkit libnbd-bin python3-libnbd python3-libvirt python3-venv
    sudo grub-pc-bin e2fsprogs fdisk iproute2 iptables procps curl ca-certificates git shellcheck man-db
    nbdkit-plugin-python fio stress-ng strace zstd xz-utils apparmor checkpolicy
    gcc libc6-dev make flex bison bc libelf-dev lz4
    ceph-mon ceph-osd ceph-common python3-rados python3-rbd mariadb-server postgresql prometheus
)
# Nova's UEFI guests start with the libvirt of Debian 13; see tests/e2e/test_uefi.py.
# shellcheck source=/dev/null
[ "$(. /etc/os-release && echo "${VERSION_ID:-13}" | cut -d . -f 1)" -lt 13 ] || DEBIAN_PACKAGES+=(ovmf mtools dosfstools grub-efi-amd64-bin)

missing_debian_packages() {
    local package
    for package in "${DEBIAN_PACKAGES[@]}"; do
        dpkg-query -W -f '${db:Status-Status}\n' "$package" 2>/dev/null | grep -qx installed || echo "$package"
    done
}

install_debian_packages() {
    local missing policy=/usr/sbin/policy-rc.d made=
    missing=$(missing_debian_packages)
    [ -n "$missing" ] || return 0
    [ "$(id -u)" = 0 ] || die "run as root: Debian packages are missing: $missing"
    say "installing Debian packages: ${missing//$'\n'/ }"
    # The packages' own services stay off: the cloud starts its own, on loopback, and stops them.
    if [ ! -e "$policy" ]; then
        printf '#!/bin/sh\nexit 101\n' >"$policy"; chmod 755 "$policy"; made=1
        trap 'rm -f /usr/sbin/policy-rc.d' EXIT
    fi
    local log=$BOOTCACHE_HOME/setup-apt.log
    # shellcheck disable=SC2086  # a list of names
    { apt-get update && DEBIAN_FRONTEND=noninteractive \
        apt-get install -y --no-install-recommends $missing; } </dev/null >"$log" 2>&1 \
        || { tail -n 20 "$log" >&2; die "apt-get failed; the whole output is in $log"; }
    if [ -n "$made" ]; then rm -f "$policy"; trap - EXIT; fi
    # Nor with the next start of this machine: the tests start databases of their own, and need promtool alone.
    local unit
    for unit in mariadb postgresql prometheus; do
        ! grep -q "^$unit\(-server\)\?$" <<<"$missing" || systemctl disable --quiet "$unit" 2>/dev/null || true
    done
}

# As the distribution's packages of OpenStack make them, which are not installed.
make_users() {
    local user
    for user in nova glance; do
        getent passwd "$user" >/dev/null && continue
        [ "$(id -u)" = 0 ] || die "run as root: there is no user $user"
        say "making the user $user"
        useradd --system --user-group --home-dir "/var/lib/$user" --shell /usr/sbin/nologin "$user"
    done
}

# Debian builds libvirt's, libnbd's and Ceph's bindings against its own libraries; the virtual environment borrows just
# them.
link_debian_bindings() {
    local site path
    site=$("$VENV/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
    dpkg -L python3-libvirt python3-libnbd python3-rados python3-rbd \
        | grep -E '^/usr/lib/python3/dist-packages/[^/]+(\.egg-info|\.dist-info|\.py|\.so)$' \
        | while read -r path; do ln -sfn "$path" "$site/$(basename "$path")"; done
    "$VENV/bin/python" -c 'import libvirt, nbd, rados, rbd' \
        || die "libvirt, libnbd, rados or rbd cannot be imported from $VENV"
}

install_python_packages() {
    local stamp=$VENV/.stamp want
    want=$(cat "$TOP"/tools/constraints.txt "$TOP"/requirements.txt "$TOP"/test-requirements.txt \
        "$TOP"/tools/cloud-requirements.txt | sha256sum)
    if [ "$(cat "$stamp" 2>/dev/null)" != "$want" ]; then
        say "installing Python packages into $VENV"
        # Debian's own interpreter, as its bindings are built for it.
        [ -x "$VENV/bin/python" ] || /usr/bin/python3 -m venv "$VENV"
        "$VENV/bin/pip" install -q --disable-pip-version-check -c "$TOP/tools/constraints.txt" pip setuptools wheel
        "$VENV/bin/pip" install -q --disable-pip-version-check -c "$TOP/tools/constraints.txt" \
            -r "$TOP/requirements.txt" -r "$TOP/test-requirements.txt" -r "$TOP/tools/cloud-requirements.txt"
        echo "$want" >"$stamp"
    fi
    link_debian_bindings
}

# All that a storage node needs, for environments that have nothing else: the tests that install
# the project make such, and have no network.
download_wheels() {
    local wheels=$BOOTCACHE_HOME/wheels needed want
    needed=$("$VENV/bin/python" "$TOP/tools/storage_requirements.py")
    want=$({ cat "$TOP"/tools/constraints.txt; echo "$needed"; } | sha256sum)
    [ "$(cat "$wheels/.stamp" 2>/dev/null)" != "$want" ] || return 0
    rm -rf "$wheels"
    "$VENV/bin/pip" wheel -q --disable-pip-version-check -w "$wheels" -c "$TOP/tools/constraints.txt" \
        -r <(echo "$needed")
    echo "$want" >"$wheels/.stamp"
}

# Not an editable install: Nova looks for its drivers below its own package in site-packages only.
install_project() {
    local stamp=$VENV/.project want
    want=$(cd "$TOP" && find bootcache glance_bootcache nova_bootcache etc setup.cfg setup.py pyproject.toml \
        -type f -not -name '*.pyc' -print0 | sort -z | xargs -0 sha256sum | sha256sum)
    [ "$(cat "$stamp" 2>/dev/null)" != "$want" ] || return 0
    local build
    build=$(mktemp -d)
    # A copy, so that a build leaves nothing in the tree.
    (cd "$TOP" && cp -a bootcache glance_bootcache nova_bootcache etc setup.cfg setup.py pyproject.toml \
        README.md LICENSE requirements.txt "$build"/)
    "$VENV/bin/pip" install -q --disable-pip-version-check --no-deps --no-build-isolation --force-reinstall "$build"
    rm -rf "$build"
    echo "$want" >"$stamp"
}

mkdir -p "$BOOTCACHE_HOME"
# tools/matrix.sh takes the functions for environments of its own.
[ "${BASH_SOURCE[0]}" = "$0" ] || return 0
install_debian_packages
make_users
install_python_packages
download_wheels
install_project
