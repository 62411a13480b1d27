#!/bin/bash
# A real devstack with the plugin as it is in this tree, in a container: an overlay of this machine's root, which
# systemd-nspawn boots. For Debian 12 and 13, as root; 20 to 30 minutes, 6 GB.
# usage: DEVSTACK_DIR=... [DEVSTACK_REQUIREMENTS_DIR=...] tools/devstack.sh [STEP]...
#   container  a new container, with devstack, the services' sources and this tree in it
#   stack      stack.sh
#   register   an image becomes ready
#   boot       a server starts from its cache image, and libvirt's QEMU reaches no monitor
#   settle     its disk gets a base of the host's own
#   reboot     the container is stopped and started again: all services come back, and servers start
#   restack    unstack.sh and stack.sh: nothing is left of before, and an image becomes ready
#   unstack    nothing of bootcache runs any more
#   clean      nothing of bootcache is on the disk any more
# All of them if none is named; the container stays for steps by themselves.
#
# DEVSTACK_DIR is a tree of devstack. With DEVSTACK_REQUIREMENTS_DIR, a tree of OpenStack's requirements, the services
# are those of tools/constraints.txt, from PyPI; otherwise devstack clones what it wants from where it wants.
# The container has this machine's network, as package registries are reached through it, and everything in it
# listens on 127.0.0.1; ports 80, 3306, 5672 and 9696 have to be free. Servers have no network, and a stub takes the
# place of Neutron. Everything is below $BOOTCACHE_HOME/devstack; what was printed is in its folder "log".
set -euo pipefail
# shellcheck source=tools/common.sh
. "$(dirname "$0")/common.sh"
# shellcheck source=tools/images/sources.sh
. "$TOP/tools/images/sources.sh"

STEPS=(container stack register boot settle reboot restack unstack clean)
PLACE=$BOOTCACHE_HOME/devstack
ROOT=$PLACE/root
SERVICES=(keystone glance nova openstack-placement)
usage() { say "usage: DEVSTACK_DIR=... [DEVSTACK_REQUIREMENTS_DIR=...] tools/devstack.sh [${STEPS[*]}]..."; }

for step in "$@"; do
    case $step in
    -h | --help) usage; exit 0 ;;
    *) [[ " ${STEPS[*]} " == *" $step "* ]] || { usage; die "'$step' is not one of: ${STEPS[*]}"; } ;;
    esac
done
[ $# -eq 0 ] || STEPS=("$@")
[ "$(id -u)" = 0 ] || die "run as root: a container is booted"
[ -x "${DEVSTACK_DIR:-}/stack.sh" ] || die "set DEVSTACK_DIR to a tree of devstack, with its stack.sh"
command -v systemd-nspawn >/dev/null || die "systemd-nspawn is missing: install systemd-container"

# In namespaces of its own: with this process everything ends that was mounted or started.
if [ -z "${BOOTCACHE_DEVSTACK_INSIDE:-}" ]; then
    mkdir -p "$PLACE/log"
    exec 9>"$PLACE/lock"
    flock -n 9 || die "another tools/devstack.sh is running"
    export BOOTCACHE_DEVSTACK_INSIDE=1
    exec setpriv --pdeathsig KILL unshare --mount --pid --propagation private --fork --kill-child=KILL --mount-proc \
        "$0" "${STEPS[@]}"
fi

# Repositories as devstack clones them, with one commit each.
repository() { # NAME DIRECTORY [VERSION]
    local git=(git -C "$2" -c user.name=devstack -c user.email=devstack@localhost)
    "${git[@]}" init -q -b "${4:-master}"
    "${git[@]}" add -Af
    "${git[@]}" commit -q -m "$1"
    [ -z "${3:-}" ] || "${git[@]}" tag -a -m "$1 $3" "$3"
}

# shellcheck disable=SC2317  # called through "logged"
repositories() {
    local repos=$ROOT/opt/stack/repos name file version directory
    mkdir -p "$repos/openstack" "$repos/bootcache"
    (cd "$TOP" && git ls-files -zco --exclude-standard \
        | tar -c --null --ignore-failed-read -T - | tar -x -C "$repos/bootcache")
    repository bootcache "$repos/bootcache" '' main
    [ -n "${DEVSTACK_REQUIREMENTS_DIR:-}" ] || return 0
    directory=$repos/openstack/requirements.git
    mkdir "$directory"
    tar -c -C "$DEVSTACK_REQUIREMENTS_DIR" --exclude=./.git . | tar -x -C "$directory"
    /usr/bin/python3 "$TOP/tools/devstack/pins.py" "$TOP/tools/constraints.txt" "$directory/upper-constraints.txt"
    repository requirements "$directory" 1.2.0
    mkdir -p "$PLACE/sources"
    for name in "${SERVICES[@]}"; do
        version=$(sed -n "s/^$name==//p" "$TOP/tools/constraints.txt")
        /usr/bin/python3 -m pip download -q --disable-pip-version-check --no-deps --no-binary "$name" \
            -d "$PLACE/sources" "$name==$version" || die "$name $version cannot be had"
        file=$(find "$PLACE/sources" -name "${name//-/[-_]}-$version.tar.gz")
        directory=$repos/openstack/${name#openstack-}.git
        mkdir "$directory"
        tar -x -C "$directory" --strip-components=1 -f "$file"
        # git and pbr are to tell the version, as in a clone.
        rm -rf "$directory/PKG-INFO"
        repository "$name" "$directory" "$version"
    done
}

local_conf() {
    cat <<CONF
[[local|localrc]]
HOST_IP=127.0.0.1
SERVICE_LISTEN_ADDRESS=127.0.0.1
${DEVSTACK_REQUIREMENTS_DIR:+GIT_BASE=file:///opt/stack/repos}
ADMIN_PASSWORD=secret
DATABASE_PASSWORD=secret
RABBIT_PASSWORD=secret
SERVICE_PASSWORD=secret
LOGFILE=/opt/stack/logs/stack.log
LOG_COLOR=False
ENABLED_SERVICES=key,rabbit,mysql,placement-api,placement-client,g-api,n-api,n-cpu,n-cond,n-sch,n-api-meta
API_WORKERS=1
LIBVIRT_TYPE=qemu
DOWNLOAD_DEFAULT_IMAGES=False
IMAGE_URLS=
enable_plugin bootcache file:///opt/stack/repos/bootcache main
[[post-config|\$NOVA_CONF]]
# Nova's own but NET_ADMIN, which the container has not: its network is this machine's.
[nova_sys_admin]
capabilities = CAP_CHOWN,CAP_DAC_OVERRIDE,CAP_DAC_READ_SEARCH,CAP_FOWNER,CAP_SYS_ADMIN
CONF
}

# shellcheck disable=SC2317
new_container() {
    rm -rf "$PLACE/upper" "$PLACE/work"
    mkdir -p "$PLACE/upper" "$PLACE/work" "$ROOT"
    mount_root
    local stack=$ROOT/opt/stack
    # The machine's own services, and those that it was told not to start.
    rm -rf "$ROOT"/usr/sbin/policy-rc.d "$ROOT"/etc/systemd/system/*.wants/ceph* "$ROOT/etc/apt/sources.list" \
        "$ROOT"/etc/apt/sources.list.d/* "$ROOT"/etc/sudoers.d/* "$ROOT"/etc/{keystone,nova,glance,placement,neutron,bootcache}
    apt_sources "$(. /etc/os-release && echo "$VERSION_CODENAME")" "$ROOT/etc/apt/sources.list.d/debian"
    # Not a first boot: that enables all units, and with the TLS one of its sockets libvirtd wants a certificate.
    tr -d - </proc/sys/kernel/random/uuid >"$ROOT/etc/machine-id"
    printf '127.0.0.1 localhost devstack\n' >"$ROOT/etc/hosts"
    echo devstack >"$ROOT/etc/hostname"
    printf 'en_US.UTF-8 UTF-8\n' >"$ROOT/etc/locale.gen"
    ln -sf /dev/null "$ROOT/etc/systemd/system/ssh.service"
    ln -sf /dev/null "$ROOT/etc/systemd/system/fio.service"
    # On loopback from their first start on.
    mkdir -p "$ROOT/etc/rabbitmq" "$ROOT/etc/apache2"
    echo 'listeners.tcp.1 = 127.0.0.1:5672' >"$ROOT/etc/rabbitmq/rabbitmq.conf"
    cat >"$ROOT/etc/rabbitmq/rabbitmq-env.conf" <<'CONF'
NODENAME=rabbit@localhost
SERVER_ADDITIONAL_ERL_ARGS="-kernel inet_dist_use_interface {127,0,0,1}"
CONF
    echo 'Listen 127.0.0.1:80' >"$ROOT/etc/apache2/ports.conf"
    # The network is this machine's: nothing in the container may change it.
    printf '#!/bin/sh\nexit 0\n' >"$ROOT/usr/local/sbin/sysctl"
    chmod 755 "$ROOT/usr/local/sbin/sysctl"
    # Where the kernel has no iSCSI its daemon ends at once, at which stack.sh gives up; no volume is attached here.
    mkdir -p "$ROOT/etc/systemd/system/iscsid.service.d"
    printf '[Service]\nType=oneshot\nExecStart=\nExecStart=/bin/true\n' \
        >"$ROOT/etc/systemd/system/iscsid.service.d/without-iscsi.conf"
    # This kernel's group controllers may not be a container's to use.
    mkdir -p "$ROOT/etc/libvirt"
    grep -qs '^cgroup_controllers' "$ROOT/etc/libvirt/qemu.conf" \
        || echo 'cgroup_controllers = []' >>"$ROOT/etc/libvirt/qemu.conf"
    mkdir -p "$stack"
    chroot "$ROOT" useradd --home-dir /opt/stack --shell /bin/bash stack
    echo 'stack ALL=(ALL) NOPASSWD: ALL' >"$ROOT/etc/sudoers.d/stack"
    mkdir "$stack/devstack"
    tar -c -C "$DEVSTACK_DIR" --exclude=./.git . | tar -x -C "$stack/devstack"
    local_conf >"$stack/devstack/local.conf"
    install -m 755 "$TOP/tools/devstack/local.sh" "$stack/devstack/local.sh"
    repositories
    chroot "$ROOT" chown -R stack:stack /opt/stack
    chmod 755 "$stack"
}

mount_root() {
    mountpoint -q "$ROOT" \
        || mount -t overlay overlay -o "lowerdir=/,upperdir=$PLACE/upper,workdir=$PLACE/work" "$ROOT"
}

logged() { # NAME COMMAND...
    local name=$1 begin=$SECONDS; shift
    say "== $name"
    "$@" >"$PLACE/log/$name.log" 2>&1 || { tail -n 30 "$PLACE/log/$name.log" >&2; die "$name: see $PLACE/log/$name.log"; }
    say "== $name: $((SECONDS - begin)) s"
}

INIT=
in_container() { nsenter --target "$INIT" --all --wd=/ env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin LANG=C.UTF-8 "$@"; }

# shellcheck disable=SC2317
boot_container() {
    local nspawn attempt
    mkdir -p /run/systemd/nspawn
    mount -t tmpfs nspawn /run/systemd/nspawn
    systemd-nspawn --quiet --boot --directory="$ROOT" --register=no --keep-unit --machine=devstack \
        --resolv-conf=off --timezone=off --console=pipe </dev/null >>"$PLACE/log/console.log" 2>&1 &
    nspawn=$!
    for attempt in $(seq 120); do
        INIT=$(pgrep -P "$nspawn" -x systemd || pgrep -P "$nspawn" -x init || true)
        [ -z "$INIT" ] || [ ! -S "/proc/$INIT/root/run/systemd/private" ] || break
        kill -0 "$nspawn" 2>/dev/null || return 1
        sleep 0.5
    done
    [ "$attempt" -lt 120 ] || return 1
    # "degraded" is good enough.
    in_container systemctl is-system-running --wait || true
    cp "$TOP/tools/devstack/inside.sh" "$ROOT/opt/stack/inside.sh"
    in_container systemctl --no-pager --failed
}

# shellcheck disable=SC2317
stop_container() {
    kill -s RTMIN+4 "$INIT"
    while kill -0 "$INIT" 2>/dev/null; do sleep 0.5; done
    umount /run/systemd/nspawn
}

# shellcheck disable=SC2317
run_step() { in_container runuser -u stack -- env HOME=/opt/stack bash /opt/stack/inside.sh "$1"; }

# shellcheck disable=SC2317
reboot_container() { stop_container; boot_container; }

if [ "${STEPS[0]}" = container ]; then
    logged container new_container
    STEPS=("${STEPS[@]:1}")
else
    [ -d "$PLACE/upper" ] || die "there is no container yet: the first step is \"container\""
    mount_root
fi
boot_container >"$PLACE/log/boot.log" 2>&1 || die "the container does not boot: see $PLACE/log/console.log"
for step in "${STEPS[@]}"; do
    [ "$step" != register ] || cp "$("$TOP/tools/images/make.sh" small)" "$ROOT/opt/stack/small.qcow2"
    [ "$step" != reboot ] || reboot_container >>"$PLACE/log/boot.log" 2>&1 || die "the container does not boot again"
    logged "$step" run_step "$step"
done
stop_container
