#!/bin/bash
# shellcheck disable=SC1090,SC1091,SC2154
# The package is replaced, and what was stopped starts again with the configuration and the state of before.
echo "*********************************************************************"
echo "Begin $0"
echo "*********************************************************************"

cleanup() {
    set +o errexit
    echo "*********************************************************************"
    echo "ERROR: Abort $0"
    echo "*********************************************************************"
    kill -2 $$
}
trap cleanup SIGHUP SIGINT SIGTERM

source "$GRENADE_DIR/grenaderc"
source "$GRENADE_DIR/functions"
source "$TARGET_DEVSTACK_DIR/functions"
source "$TARGET_DEVSTACK_DIR/stackrc"
source "$TARGET_DEVSTACK_DIR/lib/apache"
source "$TARGET_DEVSTACK_DIR/lib/tls"
source "$TARGET_DEVSTACK_DIR/lib/database"
source "$TARGET_DEVSTACK_DIR/lib/rpc_backend"
source "$TARGET_DEVSTACK_DIR/lib/keystone"
source "$TARGET_DEVSTACK_DIR/lib/glance"
source "$TARGET_DEVSTACK_DIR/lib/nova"

BOOTCACHE_DEVSTACK_DIR=$(dirname "$(dirname "$0")")
source "$BOOTCACHE_DEVSTACK_DIR/settings"
# No phase: only the functions.
source "$BOOTCACHE_DEVSTACK_DIR/plugin.sh" upgrade none

set -o errexit
set -o xtrace

install_bootcache

# Of a release that had none. Those that run are read by: they stay, as the gateway does.
if is_service_enabled n-bootcache-connectors \
        && [[ ! -e "$SYSTEMD_DIR/devstack@n-bootcache-connectors.service" ]]; then
    start_bootcache_connectors
fi
if is_service_enabled bootcache-exchange; then
    start_bootcache_exchange
fi
if is_service_enabled g-bootcache; then
    start_bootcache_service
    ensure_services_started glance-bootcache
fi

set +o xtrace
echo "*********************************************************************"
echo "SUCCESS: End $0"
echo "*********************************************************************"
