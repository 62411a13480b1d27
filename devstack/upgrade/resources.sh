#!/bin/bash
# shellcheck disable=SC1090,SC1091,SC2154
# What grenade makes before the upgrade and looks for after it: an image with a cache image, and a server that has
# started from it.
set -o errexit

source "$GRENADE_DIR/grenaderc"
source "$GRENADE_DIR/functions"
source "$TOP_DIR/openrc" admin admin

set -o xtrace

IMAGE=bootcache-grenade
SERVER=bootcache-grenade

function ready {
    local id
    id=$(openstack image show "$IMAGE" -f value -c id)
    sudo "$(which bootcache)" image show --wait "$id"
    sudo "$(which bootcache)" image show -f value -c state "$id" | grep -qx ready
}

function create {
    local file
    file=$(mktemp)
    openstack image save --file "$file" "$DEFAULT_IMAGE_NAME"
    openstack image create --disk-format qcow2 --container-format bare --file "$file" "$IMAGE"
    rm -f "$file"
    ready
    openstack server create --image "$IMAGE" --flavor "$DEFAULT_INSTANCE_TYPE" --nic none --wait "$SERVER"
    resource_save bootcache server "$(openstack server show "$SERVER" -f value -c id)"
}

function verify {
    ready
    [[ "$(openstack server show "$(resource_get bootcache server)" -f value -c status)" == ACTIVE ]]
    # Its chain works on: a hard reboot opens it anew.
    openstack server reboot --hard --wait "$(resource_get bootcache server)"
}

# While the services are down the server runs.
function verify_noapi {
    local state
    state=$(sudo virsh domstate "$(resource_get bootcache server)")
    [[ "$state" == running ]]
}

function destroy {
    openstack server delete --wait "$(resource_get bootcache server)"
    openstack image delete "$IMAGE"
}

case $1 in
    early_create) : ;;
    create) create ;;
    verify) verify ;;
    verify_noapi) verify_noapi ;;
    destroy) destroy ;;
    force_destroy) set +o errexit; destroy ;;
esac
