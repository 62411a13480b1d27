#!/bin/bash
# The bootcache plugin: devstack sources this file once for each phase, with the phase as arguments.
#
# Which pieces a node gets follows from its services, so the same plugin serves one node or many:
#   g-bootcache           the storage service (glance-bootcache) and its exporter
#   g-api                 the Glance hook, and notifications
#   n-cpu                 the compute driver
#   n-bootcache-gateway   the gateway
#   bootcache-exchange    the exchange between hosts, where BOOTCACHE_EXCHANGE_NETWORKS is set
#   n-api                 what snapshots do not inherit
#   n-sch                 the weigher and the filter

BOOTCACHE_XTRACE=$(set +o | grep xtrace)
set +o xtrace

function is_bootcache_here {
    is_service_enabled g-bootcache || is_service_enabled g-api || is_service_enabled n-cpu \
        || is_service_enabled n-sch
}

function bootcache_python {
    if [[ "${GLOBAL_VENV:-False}" == "True" ]]; then
        echo "$DEVSTACK_VENV/bin/python"
    else
        echo python3
    fi
}

function bootcache_purelib {
    "$(bootcache_python)" -c 'import sysconfig; print(sysconfig.get_path("purelib"))'
}

function bootcache_bin_dir {
    if [[ "${GLOBAL_VENV:-False}" == "True" ]]; then
        echo "$DEVSTACK_VENV/bin"
    else
        get_python_exec_prefix
    fi
}

# Packages
# --------

function install_bootcache_packages {
    if ! is_ubuntu; then
        die $LINENO "the bootcache plugin knows Debian and Ubuntu only"
    fi
    # qemu-storage-daemon is in the one or, since Debian 13, in the other. is_ubuntu is true for Debian as well.
    install_package qemu-utils qemu-system-common
    if is_service_enabled g-bootcache; then
        install_package qemu-block-extra python3-libnbd
    fi
}

# The distribution's libnbd binding belongs to the distribution's Python. A virtual environment made
# from that Python borrows just these files.
function link_bootcache_libnbd {
    local site path
    if [[ "${GLOBAL_VENV:-False}" != "True" ]]; then
        return 0
    fi
    site=$(bootcache_purelib)
    dpkg -L python3-libnbd \
        | grep -E '^/usr/lib/python3/dist-packages/[^/]+(\.egg-info|\.dist-info|\.py|\.so)$' \
        | while read -r path; do
            ln -sfn "$path" "$site/$(basename "$path")"
        done
}

# Code
# ----

# Nova's loader takes drivers from below nova.virt only, so setup.cfg installs our shim as
# nova.virt.bootcache in site-packages. That is right beside an installed Nova. devstack's Nova is
# an editable install: its files are in $NOVA_DIR, and a folder "nova" in site-packages would hide
# all of it ("import nova" finds the folder and nothing in it). So the shim goes to Nova's own tree
# as a link, and the folder in site-packages goes away.
function link_bootcache_driver {
    local site
    if [[ ! -d "$NOVA_DIR/nova/virt" ]]; then
        return 0
    fi
    site=$(bootcache_purelib)
    ln -sfn "$BOOTCACHE_DIR/nova_bootcache/shim" "$NOVA_DIR/nova/virt/bootcache"
    if [[ ! -e "$site/nova/__init__.py" ]]; then
        sudo rm -rf "$site/nova/virt/bootcache"
        # Only if they are empty now.
        sudo rmdir "$site/nova/virt" "$site/nova" || true
    fi
}

function install_bootcache {
    # Not setup_develop: an editable install of bootcache maps nova.virt.bootcache by an import hook
    # that Nova's loader does not reach. pip installs a local folder anew each time.
    pip_install "$BOOTCACHE_DIR"
    if is_service_enabled bootcache-exchange; then
        pip_install 'libtorrent>=2.1.1'
    fi
    link_bootcache_driver
    if is_service_enabled g-bootcache; then
        link_bootcache_libnbd
    fi
}

# Certificates
# ------------

# A node with the storage service makes what it has not; others are given theirs.
function make_bootcache_certificates {
    local name
    if [[ "$BOOTCACHE_TLS" != "True" || -e "$BOOTCACHE_TLS_DIRECTORY/ca-cert.pem" ]]; then
        return 0
    fi
    name=$(basename "$BOOTCACHE_TLS_DIRECTORY")
    if ! is_service_enabled g-bootcache; then
        die $LINENO "no certificates in $BOOTCACHE_TLS_DIRECTORY: make them where g-bootcache runs\
 (bootcache ca $BOOTCACHE_CONF_DIR/ca $name,$HOST_IP) and copy $BOOTCACHE_CONF_DIR/ca/$name to that\
 folder here; or set BOOTCACHE_TLS=False on all nodes"
    fi
    sudo install -d -o "$STACK_USER" "$BOOTCACHE_CONF_DIR"
    "$(bootcache_bin_dir)/bootcache" ca "$(dirname "$BOOTCACHE_TLS_DIRECTORY")" \
        "$name,$BOOTCACHE_EXPORT_HOST,$HOST_IP"
}

# Configuration
# -------------

# What the processes of a node need that speak with those of others, in one file.
function configure_bootcache_tls {
    if [[ "$BOOTCACHE_TLS" == "True" ]]; then
        iniset "$1" bootcache tls_directory "$BOOTCACHE_TLS_DIRECTORY"
    fi
}

# One process a node exchanges: on one with both sides it is the storage service's.
function configure_bootcache_exchange {
    if is_service_enabled bootcache-exchange; then
        iniset "$1" bootcache exchange_address "$HOST_IP"
        iniset "$1" bootcache exchange_networks "$BOOTCACHE_EXCHANGE_NETWORKS"
        iniset "$1" bootcache exchange_socket "$BOOTCACHE_RUN_DIR/exchange.sock"
    fi
}

function configure_bootcache_service {
    sudo install -d -o "$STACK_USER" "$BOOTCACHE_CONF_DIR" "$BOOTCACHE_STATE_DIR"
    rm -f "$BOOTCACHE_CONF"
    iniset "$BOOTCACHE_CONF" DEFAULT debug "$ENABLE_DEBUG_LOG_LEVEL"
    iniset_rpc_backend bootcache "$BOOTCACHE_CONF"
    iniset_rpc_backend bootcache "$BOOTCACHE_CONF" bootcache
    iniset "$BOOTCACHE_CONF" bootcache state_dir "$BOOTCACHE_STATE_DIR"
    iniset "$BOOTCACHE_CONF" bootcache run_dir "$BOOTCACHE_RUN_DIR"
    iniset "$BOOTCACHE_CONF" bootcache gateway_socket "$BOOTCACHE_GATEWAY_SOCKET"
    iniset "$BOOTCACHE_CONF" bootcache export_host "$BOOTCACHE_EXPORT_HOST"
    configure_bootcache_tls "$BOOTCACHE_CONF"
    configure_bootcache_exchange "$BOOTCACHE_CONF"
    if [[ "$BOOTCACHE_TLS" != "True" ]]; then
        iniset "$BOOTCACHE_CONF" bootcache allow_plain_nbd True
    elif [[ -n "$BOOTCACHE_EXPORT_PORTS" ]]; then
        iniset "$BOOTCACHE_CONF" bootcache export_ports "$BOOTCACHE_EXPORT_PORTS"
    fi
    # shellcheck disable=SC2153
    iniset "$BOOTCACHE_CONF" bootcache export_port "$BOOTCACHE_EXPORT_PORT"
    iniset "$BOOTCACHE_CONF" bootcache default_quota "$BOOTCACHE_DEFAULT_QUOTA"
    iniset "$BOOTCACHE_CONF" bootcache profile_timeout "$BOOTCACHE_PROFILE_TIMEOUT"
    if is_service_enabled g-api; then
        iniset "$BOOTCACHE_CONF" bootcache glance_store_dirs "$GLANCE_IMAGE_DIR"
    fi

    iniset "$BOOTCACHE_CONF" service_auth auth_type password
    iniset "$BOOTCACHE_CONF" service_auth auth_url "$KEYSTONE_SERVICE_URI"
    iniset "$BOOTCACHE_CONF" service_auth username "$BOOTCACHE_USER"
    iniset "$BOOTCACHE_CONF" service_auth password "$SERVICE_PASSWORD"
    iniset "$BOOTCACHE_CONF" service_auth user_domain_name "$SERVICE_DOMAIN_NAME"
    iniset "$BOOTCACHE_CONF" service_auth project_name "$SERVICE_PROJECT_NAME"
    iniset "$BOOTCACHE_CONF" service_auth project_domain_name "$SERVICE_DOMAIN_NAME"
    iniset "$BOOTCACHE_CONF" service_auth region_name "$REGION_NAME"
    if is_service_enabled tls-proxy; then
        iniset "$BOOTCACHE_CONF" service_auth cafile "$SSL_BUNDLE_FILE"
    fi
    setup_logging "$BOOTCACHE_CONF"
}

# Adds bootcache to the import plugins that are configured already; "no_op" means none.
function configure_bootcache_hook {
    local plugins topics
    plugins=$(iniget "$GLANCE_IMAGE_IMPORT_CONF" image_import_opts image_import_plugins)
    plugins=$(echo "$plugins" | tr -d "[]'\" " | tr ',' '\n' \
        | grep -vxE 'no_op|bootcache|' | tr '\n' ',' || true)
    iniset "$GLANCE_IMAGE_IMPORT_CONF" image_import_opts image_import_plugins \
        "[${plugins}bootcache]"
    iniset_rpc_backend bootcache "$GLANCE_API_CONF" bootcache
    # Uploads pass no import plugin: the storage service hears of them by notification.
    # On a topic of its own, beside those that others were given: what nobody reads stays on the bus.
    topics=$(iniget "$GLANCE_API_CONF" oslo_messaging_notifications topics)
    if [[ -z "$topics" && -n "$(iniget "$GLANCE_API_CONF" oslo_messaging_notifications driver)" ]]
    then
        topics=notifications
    fi
    topics=$(echo "$topics" | tr -d ' ' | tr ',' '\n' | grep -vxE 'bootcache_images|' \
        | tr '\n' ',' || true)
    iniset "$GLANCE_API_CONF" oslo_messaging_notifications driver messagingv2
    iniset "$GLANCE_API_CONF" oslo_messaging_notifications topics "${topics}bootcache_images"
}

# Settings for nova-compute. devstack makes nova-cpu.conf from nova.conf after this phase, so that
# nova.conf has to have them; nova-cpu.conf gets them as well if it is there already.
function configure_bootcache_driver {
    local conf
    for conf in "$NOVA_CONF" "$NOVA_CPU_CONF"; do
        if [[ "$conf" == "$NOVA_CPU_CONF" && ! -e "$conf" ]]; then
            continue
        fi
        iniset "$conf" DEFAULT compute_driver bootcache.BootCacheLibvirtDriver
        # nova-compute's own bus is its cell's; the storage service is on the main one.
        iniset_rpc_backend bootcache "$conf" bootcache
        iniset "$conf" bootcache gateway_socket "$BOOTCACHE_GATEWAY_SOCKET"
        iniset "$conf" bootcache gateway_run_dir "$BOOTCACHE_RUN_DIR"
        configure_bootcache_tls "$conf"
        if ! is_service_enabled g-bootcache; then
            configure_bootcache_exchange "$conf"
        fi
    done
}

# A snapshot is another image: it must not say that it is ready because its original was.
function configure_bootcache_snapshots {
    local names name
    names=$(iniget "$NOVA_CONF" DEFAULT non_inheritable_image_properties)
    names=${names:-cache_in_nova,bittorrent}
    for name in bootcache_state bootcache_reason; do
        if [[ ",$names," != *",$name,"* ]]; then
            names="$names,$name"
        fi
    done
    iniset "$NOVA_CONF" DEFAULT non_inheritable_image_properties "$names"
}

# Adds the weigher and the filter to what is configured already.
function configure_bootcache_scheduler {
    local filters package=nova_bootcache.scheduler
    iniset "$NOVA_CONF" filter_scheduler weight_classes \
        "nova.scheduler.weights.all_weighers,$package.weights.BootCacheWeigher"
    filters=$(iniget "$NOVA_CONF" filter_scheduler enabled_filters)
    filters=${filters:-$BOOTCACHE_NOVA_FILTERS}
    if [[ ",$filters," != *",BootCacheFilter,"* ]]; then
        filters="$filters,BootCacheFilter"
    fi
    iniset "$NOVA_CONF" filter_scheduler enabled_filters "$filters"
    iniset_multiline "$NOVA_CONF" filter_scheduler available_filters \
        nova.scheduler.filters.all_filters "$package.filters.BootCacheFilter"
}

function configure_bootcache {
    if is_service_enabled g-bootcache || is_service_enabled n-cpu; then
        make_bootcache_certificates
    fi
    if is_service_enabled g-bootcache; then
        configure_bootcache_service
    fi
    if is_service_enabled g-api; then
        configure_bootcache_hook
    fi
    if is_service_enabled n-cpu; then
        configure_bootcache_driver
    fi
    if is_service_enabled n-api; then
        configure_bootcache_snapshots
    fi
    if is_service_enabled n-sch; then
        configure_bootcache_scheduler
    fi
}

# Reads all tenants' images and sets their state; starts servers in the service project.
function create_bootcache_account {
    create_service_user "$BOOTCACHE_USER" admin
}

# Processes
# ---------

function bootcache_guest_group {
    local group
    for group in $BOOTCACHE_GUEST_GROUP libvirt-qemu kvm; do
        if getent group "$group" >/dev/null; then
            echo "$group"
            return 0
        fi
    done
    die $LINENO "no group of libvirt's QEMU: set BOOTCACHE_GUEST_GROUP"
}

# The gateway has to be there before nova-compute, which would start one of its own otherwise.
function start_bootcache_gateway {
    local group nbd monitor pidfile
    group=$(bootcache_guest_group)
    sudo install -d -o "$STACK_USER" "$BOOTCACHE_RUN_DIR" "$(dirname "$BOOTCACHE_GATEWAY_SOCKET")"
    nbd="addr.type=unix,addr.path=$BOOTCACHE_GATEWAY_SOCKET,max-connections=0"
    monitor="socket,path=$BOOTCACHE_RUN_DIR/gateway.qmp,server=on,wait=off,id=monitor"
    pidfile="$BOOTCACHE_RUN_DIR/gateway.pid"
    rm -f "$pidfile"
    # No umask in devstack's units: the group needs to write to a socket to connect to it.
    run_process n-bootcache-gateway "/bin/sh -c \"umask 0007; exec qemu-storage-daemon\
 --chardev $monitor --monitor chardev=monitor --pidfile $pidfile --nbd-server $nbd\"" "$group"
}

function start_bootcache_service {
    sudo install -d -o "$STACK_USER" "$BOOTCACHE_RUN_DIR"
    run_process g-bootcache "$(bootcache_bin_dir)/glance-bootcache --config-file $BOOTCACHE_CONF"
}

function start_bootcache_exchange {
    local conf=$NOVA_CPU_CONF
    if is_service_enabled g-bootcache; then
        conf=$BOOTCACHE_CONF
    fi
    sudo install -d -o "$STACK_USER" "$BOOTCACHE_RUN_DIR"
    run_process bootcache-exchange "$(bootcache_bin_dir)/bootcache-exchange --config-file $conf"
}

# The exporters, and what opens bases and snapshots, outlive the storage service on purpose; here they go too.
function stop_bootcache_exporters {
    local pidfile pid
    for pidfile in "$BOOTCACHE_RUN_DIR"/{exporter*,ceph,snapshots}.pid; do
        pid=$(cat "$pidfile" 2>/dev/null || true)
        if [[ -n "$pid" ]] && grep -qsF "${pidfile%.pid}.qmp" "/proc/$pid/cmdline"; then
            sudo kill "$pid" || true
        fi
    done
}

function stop_bootcache {
    if is_service_enabled bootcache-exchange; then
        stop_process bootcache-exchange
    fi
    if is_service_enabled g-bootcache; then
        stop_process g-bootcache
        stop_bootcache_exporters
    fi
    if is_service_enabled n-bootcache-gateway; then
        stop_process n-bootcache-gateway
    fi
}

function cleanup_bootcache {
    sudo rm -rf "$BOOTCACHE_STATE_DIR" "$BOOTCACHE_CONF_DIR" "$BOOTCACHE_RUN_DIR"
    if [[ -L "$NOVA_DIR/nova/virt/bootcache" ]]; then
        rm -f "$NOVA_DIR/nova/virt/bootcache"
    fi
    if [[ -n "${NOVA_INSTANCES_PATH:-}" ]]; then
        sudo rm -rf "$NOVA_INSTANCES_PATH/_bootcache"
    fi
}

# Phases
# ------

if is_bootcache_here; then
    case "$1:${2:-}" in
        stack:pre-install)
            echo_summary "Installing packages for bootcache"
            install_bootcache_packages
            ;;
        stack:install)
            echo_summary "Installing bootcache"
            install_bootcache
            ;;
        stack:post-config)
            echo_summary "Configuring bootcache"
            configure_bootcache
            if is_service_enabled g-bootcache; then
                create_bootcache_account
            fi
            if is_service_enabled n-bootcache-gateway; then
                start_bootcache_gateway
            fi
            ;;
        stack:extra)
            if is_service_enabled g-bootcache; then
                echo_summary "Starting glance-bootcache"
                start_bootcache_service
            fi
            if is_service_enabled bootcache-exchange; then
                start_bootcache_exchange
            fi
            ;;
        stack:test-config)
            # Nothing of Tempest's depends on bootcache.
            ;;
        unstack:*)
            stop_bootcache
            ;;
        clean:*)
            cleanup_bootcache
            ;;
    esac
fi

$BOOTCACHE_XTRACE
