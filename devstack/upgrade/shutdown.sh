#!/bin/bash
# shellcheck disable=SC1090,SC1091,SC2154
# The storage service and the exchange end. Servers that run read through the gateway and the exporters: these stay.
set -o errexit

source "$GRENADE_DIR/grenaderc"
source "$GRENADE_DIR/functions"
source "$BASE_DEVSTACK_DIR/functions"
source "$BASE_DEVSTACK_DIR/stackrc"
source "$BASE_DEVSTACK_DIR/lib/database"
# Which of its services run here.
source "$(dirname "$(dirname "$0")")/settings"

set -o xtrace

stop_process bootcache-exchange
stop_process g-bootcache

ensure_services_stopped glance-bootcache bootcache-exchange
