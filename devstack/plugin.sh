#!/bin/bash
# The bootcache plugin: devstack sources this file once for each phase, with the phase as arguments.
#
# Which pieces a node gets follows from its services, so the same plugin serves one node or many:
#   g-bootcache           the storage service (glance-bootcache) and its exporter
#   g-api                 the Glance hook, and notifications
#   n-cpu                 the compute driver, where it is libvirt's with KVM or QEMU
#   n-bootcache-connectors, n-bootcache-gateway
#                         how bases are read, and the gateway
#   bootcache-exchange    the exchange between hosts, where BOOTCACHE_EXCHANGE_NETWORKS is set
#   n-api                 what snapshots do not inherit
#   n-sch                 the weigher and the filter

BOOTCACHE_XTRACE=$(set +o | grep xtrace)
set +o xtrace

function is_bootcache_here {
    is_service_enabled g-bootcache || is_service_enabled g-api || is_service_enabled n-cpu \
        || is_service_enabled n-api || is_service_enabled n-sch
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

# What would stop the stack later on, told before anything is installed. Packages are in files/bindep.txt.
function check_bootcache {
    if ! is_ubuntu; then
        die $LINENO "the bootcache plugin knows Debian and Ubuntu only"
    fi
    if [[ "$BOOTCACHE_TLS" != "True" ]] || is_service_enabled g-bootcache \
            || ! { is_bootcache_compute || is_service_enabled bootcache-exchange; } \
            || [[ -e "$BOOTCACHE_CA_DIR/ca-key.pem" || -e "$BOOTCACHE_TLS_DIRECTORY/ca-cert.pem" ]]; then
        return 0
    fi
    die $LINENO "no CA in $BOOTCACHE_CA_DIR and no certificates in $BOOTCACHE_TLS_DIRECTORY: stack the node\
 with g-bootcache first and copy its $BOOTCACHE_CA_DIR to here, as the role sync-devstack-data does where\
 tls-proxy is enabled; or set BOOTCACHE_TLS=False on all nodes"
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
    # It builds in that folder, and what an earlier build left there gets into the wheel.
    sudo rm -rf "$BOOTCACHE_DIR"/build "$BOOTCACHE_DIR"/*.egg-info
    local extra=
    ! is_service_enabled g-bootcache || extra='[storage]'
    pip_install "$BOOTCACHE_DIR$extra"
    if is_service_enabled bootcache-exchange; then
        pip_install 'libtorrent>=2.1.1'
    fi
    if is_bootcache_compute; then
        link_bootcache_driver
    fi
}

# Certificates
# ------------

# A node that has the CA signs its own, anew each time; certificates that were brought without it are kept.
function make_bootcache_certificates {
    local addresses=$HOST_IP
    if [[ "$BOOTCACHE_TLS" != "True" ]] || { ! is_service_enabled g-bootcache \
            && [[ ! -e "$BOOTCACHE_CA_DIR/ca-key.pem" ]]; }; then
        return 0
    fi
    if is_service_enabled g-bootcache && [[ "$BOOTCACHE_EXPORT_HOST" != "$HOST_IP" ]]; then
        addresses=$BOOTCACHE_EXPORT_HOST,$HOST_IP
    fi
    mkdir -p "$(dirname "$BOOTCACHE_CA_DIR")"
    "$(bootcache_bin_dir)/bootcache" ca "$BOOTCACHE_CA_DIR" \
        "$(basename "$BOOTCACHE_TLS_DIRECTORY"),$addresses"
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
    fi
}

# The directories of Glance's file stores, as its configuration has them: there may be one, many or none.
function bootcache_store_dirs {
    local backend dirs='' backends
    backends=$(iniget "$GLANCE_API_CONF" DEFAULT enabled_backends)
    if [[ -z "$backends" && "$(iniget "$GLANCE_API_CONF" glance_store default_store)" =~ ^(file)?$ ]]; then
        backends=glance_store:file
    fi
    for backend in ${backends//,/ }; do
        if [[ "$backend" == *:file ]]; then
            dirs+=,$(iniget "$GLANCE_API_CONF" "${backend%:*}" filesystem_store_datadir)
        fi
    done
    echo "${dirs#,}"
}

function configure_bootcache_service {
    # Of images that are no more: Glance's database and store were made anew.
    sudo rm -rf "$BOOTCACHE_STATE_DIR"
    sudo install -d -o "$STACK_USER" "$BOOTCACHE_CONF_DIR" "$BOOTCACHE_STATE_DIR"
    rm -f "$BOOTCACHE_CONF"
    iniset "$BOOTCACHE_CONF" DEFAULT debug "$ENABLE_DEBUG_LOG_LEVEL"
    iniset_rpc_backend bootcache "$BOOTCACHE_CONF"
    iniset_rpc_backend bootcache "$BOOTCACHE_CONF" bootcache
    iniset "$BOOTCACHE_CONF" bootcache state_dir "$BOOTCACHE_STATE_DIR"
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
    iniset "$BOOTCACHE_CONF" bootcache profile_flavor "$BOOTCACHE_PROFILE_FLAVOR"
    iniset "$BOOTCACHE_CONF" bootcache profile_timeout "$BOOTCACHE_PROFILE_TIMEOUT"
    if is_service_enabled g-api; then
        iniset "$BOOTCACHE_CONF" bootcache glance_store_dirs "$(bootcache_store_dirs)"
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
    local conf group
    group=$(bootcache_guest_group)
    for conf in "$NOVA_CONF" "$NOVA_CPU_CONF"; do
        if [[ "$conf" == "$NOVA_CPU_CONF" && ! -e "$conf" ]]; then
            continue
        fi
        iniset "$conf" DEFAULT compute_driver bootcache.BootCacheLibvirtDriver
        # nova-compute's own bus is its cell's; the storage service is on the main one.
        iniset_rpc_backend bootcache "$conf" bootcache
        iniset "$conf" bootcache gateway_socket "$BOOTCACHE_GATEWAY_SOCKET"
        # It is a unit's: one that nova-compute started would be in its way.
        iniset "$conf" bootcache gateway_autostart False
        iniset "$conf" bootcache gateway_group "$group"
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

# libvirt's profile of a server's QEMU has to allow the gateway's socket.
function configure_bootcache_apparmor {
    local rule="$BOOTCACHE_GATEWAY_SOCKET rw,"
    if [[ -d "$(dirname "$BOOTCACHE_APPARMOR_RULES")" ]] \
            && ! sudo grep -qsxF "$rule" "$BOOTCACHE_APPARMOR_RULES"; then
        echo "$rule" | sudo tee -a "$BOOTCACHE_APPARMOR_RULES" >/dev/null
    fi
}

function configure_bootcache {
    # devstack writes to nova.conf in the background, with a tool that rewrites the file.
    async_wait configure_neutron_nova
    if is_service_enabled g-bootcache || is_bootcache_compute; then
        make_bootcache_certificates
    fi
    if is_service_enabled g-bootcache; then
        configure_bootcache_service
    fi
    if is_service_enabled g-api; then
        configure_bootcache_hook
    fi
    if is_bootcache_compute; then
        configure_bootcache_driver
        configure_bootcache_apparmor
    elif is_service_enabled n-cpu; then
        echo_summary "bootcache leaves nova-compute alone: it is for VIRT_DRIVER=libvirt with kvm or qemu"
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

# Nobody else's: the service is an administrator. Disk 0: as large as the image.
function create_bootcache_flavor {
    if ! openstack flavor show "$BOOTCACHE_PROFILE_FLAVOR" >/dev/null 2>&1; then
        openstack flavor create --private --vcpus 1 --ram "$BOOTCACHE_PROFILE_RAM" --disk 0 \
            "$BOOTCACHE_PROFILE_FLAVOR"
    fi
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

# A service by the project's own unit, which has the modes, restarts and folders that are right, with devstack's
# name, user and paths.
function start_bootcache_unit { # SERVICE UNIT GROUP COMMAND
    local service=$1 unit=$2 group=$3 command=$4
    sed -e "s|^User=.*|User=$STACK_USER|" -e "s|^Group=.*|Group=$group|" \
        -e "s|^ExecStart=/opt/.*|ExecStart=$command|" -e 's|nova-compute\.service|devstack@n-cpu.service|' \
        -e '/^ExecStartPre=+.*install/d' -e '/^ProtectHome/d' -e '/^Documentation=file:/d' "$BOOTCACHE_DIR/etc/systemd/$unit" \
        | sudo tee "$SYSTEMD_DIR/devstack@$service.service" >/dev/null
    $SYSTEMCTL daemon-reload
    $SYSTEMCTL enable "devstack@$service.service"
    $SYSTEMCTL restart "devstack@$service.service"
}

# Before nova-compute, and as its user, which asks it for connectors.
function start_bootcache_connectors {
    start_bootcache_unit n-bootcache-connectors bootcache-connectors.service "$(bootcache_guest_group)" \
        "$(bootcache_bin_dir)/bootcache-connectors $(dirname "$BOOTCACHE_GATEWAY_SOCKET")"
}

# Before nova-compute, and as its user: recordings are files in Nova's instances directory.
function start_bootcache_gateway {
    start_bootcache_unit n-bootcache-gateway bootcache-gateway.service "$(bootcache_guest_group)" ''
}

function start_bootcache_service {
    start_bootcache_unit g-bootcache glance-bootcache.service "$(id -gn "$STACK_USER")" \
        "$(bootcache_bin_dir)/glance-bootcache --config-file $BOOTCACHE_CONF"
    # As devstack does for its own: a stack that is done has services that answer.
    if ! timeout "$SERVICE_TIMEOUT" bash -c "until '$(bootcache_bin_dir)/bootcache'\
 --config-file '$BOOTCACHE_CONF' image list >/dev/null; do sleep 1; done"; then
        die $LINENO "g-bootcache did not start: journalctl -u devstack@g-bootcache tells why"
    fi
}

function start_bootcache_exchange {
    local conf=$NOVA_CPU_CONF
    if is_service_enabled g-bootcache; then
        conf=$BOOTCACHE_CONF
    fi
    start_bootcache_unit bootcache-exchange bootcache-exchange.service "$(id -gn "$STACK_USER")" \
        "$(bootcache_bin_dir)/bootcache-exchange --config-file $conf"
}

# The exporters, and what opens bases and snapshots, outlive the storage service on purpose; here they go too.
function stop_bootcache_exporters {
    local pidfile pid
    for pidfile in "$BOOTCACHE_SERVICE_RUN_DIR"/{exporter*,snapshots,connectors/*}.pid; do
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
        # devstack stops Nova after its plugins, and nova-compute is not to look for a gateway that is gone.
        stop_nova_compute
        stop_process n-bootcache-gateway
    fi
    if is_service_enabled n-bootcache-connectors; then
        # Before the connectors as well; and the gateway reads by them.
        stop_nova_compute
        stop_process n-bootcache-connectors
    fi
}

function cleanup_bootcache {
    sudo rm -rf "$BOOTCACHE_STATE_DIR" "$BOOTCACHE_CONF_DIR" "$BOOTCACHE_CA_DIR" \
        "$(dirname "$BOOTCACHE_GATEWAY_SOCKET")" "$BOOTCACHE_SERVICE_RUN_DIR" \
        "$BOOTCACHE_DIR"/build "$BOOTCACHE_DIR"/*.egg-info
    if [[ -L "$NOVA_DIR/nova/virt/bootcache" ]]; then
        rm -f "$NOVA_DIR/nova/virt/bootcache"
    fi
    if [[ -e "$BOOTCACHE_APPARMOR_RULES" ]]; then
        sudo sed -i "\\|^$BOOTCACHE_GATEWAY_SOCKET |d" "$BOOTCACHE_APPARMOR_RULES"
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
            check_bootcache
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
            if is_service_enabled n-bootcache-connectors; then
                start_bootcache_connectors
            fi
            if is_service_enabled n-bootcache-gateway; then
                start_bootcache_gateway
            fi
            ;;
        stack:test-config)
            # Not in "extra": a profile boot wants a host, and devstack finds hosts after that phase.
            if is_service_enabled g-bootcache; then
                echo_summary "Starting glance-bootcache"
                create_bootcache_flavor
                start_bootcache_service
            fi
            if is_service_enabled bootcache-exchange; then
                start_bootcache_exchange
            fi
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
