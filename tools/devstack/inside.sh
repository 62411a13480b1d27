#!/bin/bash
# A step of tools/devstack.sh, within the container and as the user stack.
set -euo pipefail
cd /opt/stack/devstack
export TERM=dumb
say() { printf '== %s\n' "$*"; }
die() { say "error: $*"; exit 1; }

admin() {
    set +eu
    # shellcheck source=/dev/null
    . ./openrc admin admin
    set -eu
    export PATH=/opt/stack/data/venv/bin:$PATH
    # The first that knows a server without networks.
    export OS_COMPUTE_API_VERSION=2.37
}

# Wait for what a command says, for at most fifteen minutes: without KVM a guest takes some on a busy machine.
until_true() { # WHAT COMMAND...
    local what=$1 end=$((SECONDS + 900)); shift
    while [ "$SECONDS" -lt "$end" ]; do
        if "$@"; then return 0; fi
        sleep 2
    done
    die "still not after fifteen minutes: $what"
}

# "is-active" of many is content with one.
all_active() { [ "$(systemctl is-active "$@" | grep -cx active)" -eq $# ]; }
# Since a moment: what it said before a reboot tells nothing, and what is cast to it until it listens is lost.
nova_compute_is_up() { # SINCE
    local said
    said=$(openstack compute service list --service nova-compute -f value -c State -c 'Updated At' 2>/dev/null)
    [[ $said == "up "* && ${said#up } > $1 ]]
}

# The container may have been booted just now.
services_are_up() {
    until_true "all services are active" all_active devstack@g-bootcache devstack@n-bootcache-gateway devstack@n-cpu \
        devstack@g-api devstack@n-api
    until_true "nova-compute is up" nova_compute_is_up "$(date -u +%FT%T)"
}

register() { # NAME
    admin
    services_are_up
    local image
    image=$(openstack image create --disk-format qcow2 --container-format bare --file /opt/stack/small.qcow2 \
        -f value -c id "$1")
    sudo /opt/stack/data/venv/bin/bootcache --config-file /etc/bootcache/bootcache.conf image show "$image" --wait
    sudo /opt/stack/data/venv/bin/bootcache --config-file /etc/bootcache/bootcache.conf image show "$image" \
        -f value -c state | grep -qx ready || die "the image is not ready"
}

chain() { sudo qemu-img info -U --backing-chain "$DISK"; }
console_has() { openstack console log show "$1" 2>/dev/null | grep -q "$2"; }
settled() { ! chain | grep -q /_bootcache/; }
active() { [ "$(openstack server show "$1" -f value -c status)" = ACTIVE ]; }
disk_of() { DISK=/opt/stack/data/nova/instances/$(openstack server show "$1" -f value -c id)/disk; }

boot() { # SERVER IMAGE
    admin
    services_are_up
    openstack server create --flavor m1.tiny --image "$2" --nic none --wait "$1"
    disk_of "$1"
    chain
    chain | grep -q /_bootcache/ || die "the server has no cache image below it"
    until_true "a login prompt" console_has "$1" 'login:'
}

qemu_reaches() {
    sudo -u libvirt-qemu /usr/bin/python3 -c "import socket, sys; socket.socket(socket.AF_UNIX).connect(sys.argv[1])" \
        "$1" 2>/dev/null
}

# Whoever reaches a monitor can open files as the gateway's user: only the socket for guests is QEMU's.
monitors_are_closed() {
    local socket
    qemu_reaches /run/bootcache/gateway.sock || die "libvirt's QEMU does not reach the gateway"
    for socket in $(sudo find /run/bootcache /run/glance-bootcache -name '*.qmp'); do
        ! qemu_reaches "$socket" || die "libvirt's QEMU reaches $socket"
    done
}

nothing_runs() {
    systemctl --no-legend --all list-units 'devstack@*bootcache*' | { ! grep -w active; } || die "units are active"
    ! pgrep -af 'qemu-storage-daemon|glance-bootcache|bootcache-exchange' || die "processes are left"
}

case $1 in
stack)
    sudo locale-gen
    ./stack.sh
    ;;
register) register first ;;
boot)
    boot one first
    monitors_are_closed
    ;;
settle)
    admin
    services_are_up
    disk_of one
    until_true "the server's disk is settled" settled
    chain
    ;;
reboot)
    admin
    services_are_up
    openstack server delete --wait one
    # Of the first image the host has the full base, since a server of its has settled.
    register second
    boot two second
    monitors_are_closed
    ;;
restack)
    ./unstack.sh
    nothing_runs
    ./stack.sh
    admin
    sudo /opt/stack/data/venv/bin/bootcache --config-file /etc/bootcache/bootcache.conf image list -f value \
        | { ! grep .; } || die "images of before are still known"
    register second
    boot three second
    ;;
unstack)
    ./unstack.sh
    nothing_runs
    ;;
clean)
    ./clean.sh
    ! sudo find / -xdev \( -path /opt/stack -o -path /root -o -path /work -o -path /proc \) -prune -o -name '*bootcache*' -print | grep . \
        || die "files are left"
    ! ls -d /opt/stack/data/bootcache /opt/stack/nova/nova/virt/bootcache 2>/dev/null || die "files are left"
    ;;
*) die "no step $1" ;;
esac
say "$1: done"
