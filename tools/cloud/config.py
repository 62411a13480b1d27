"""The configuration files of every service."""

import shutil
from collections.abc import Mapping
from pathlib import Path

from tools.cloud.layout import (
    CLOUD_TAG,
    GLANCE,
    NOVA,
    QEMU,
    REGION,
    SERVICE_TAG,
    TOOLS,
    VENV,
    Host,
    Layout,
)

Sections = Mapping[str, Mapping[str, object]]

MIGRATION_PORT = 49152
MIGRATION_PORTS = 100
NOVA_SERVICES = ("nova-api", "conductor", "scheduler")


def render(sections: Sections) -> str:
    """Sections and options as an INI file."""
    lines: list[str] = []
    for section, options in sections.items():
        lines.append(f"[{section}]")
        for name, value in options.items():
            # A list is an option that is given several times.
            values = value if isinstance(value, list) else [value]
            lines += [f"{name} = {_text(each)}" for each in values]
        lines.append("")
    return "\n".join(lines)


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def put(path: Path, text: str, mode: int = 0o640) -> bool:
    """Write a file if its content differs; say whether it did.

    Whoever may read it is its folder's group: see for_group().
    """
    if path.exists() and path.read_text() == text:
        return False
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_name(path.name + ".new")
    new.write_text(text)
    new.chmod(mode)
    new.replace(path)
    return True


def for_group(directory: Path, group: str) -> Path:
    """Make a folder whose files a service's group may read, and nobody else."""
    directory.mkdir(parents=True, exist_ok=True)
    shutil.chown(directory, group=group)
    directory.chmod(0o2750)
    return directory


def write_all(layout: Layout) -> None:
    """Write the configuration of the whole cloud."""
    for user in (NOVA, GLANCE):
        for_group(layout.etc / user, user)
    put(layout.etc / "keystone" / "keystone.conf", render(keystone(layout)))
    put(layout.etc / "placement" / "placement.conf", render(placement(layout)))
    put(layout.etc / "glance" / "glance-api.conf", render(glance(layout)))
    put(layout.etc / "glance" / "glance-image-import.conf", render(glance_import()))
    api_paste = VENV / "etc" / "nova" / "api-paste.ini"
    put(layout.etc / "nova" / api_paste.name, api_paste.read_text())
    put(layout.etc / "nova" / "nova.conf", render(nova(layout)))
    put(layout.etc / "nova" / "databases.conf", render(nova_databases(layout)))
    put(layout.etc / "nova" / "scheduler.conf", render(scheduler()))
    for host in layout.hosts:
        put(layout.etc / "nova" / f"{host.compute}.conf", render(compute(layout, host)))
        libvirt(host)
    _host_names(layout)
    rabbit(layout)
    _sudoers(layout)
    _link_layers(layout)
    for path, user in ((layout.openrc, "admin"), (layout.demo_openrc, "demo")):
        put(path, openrc(layout, user))


def openrc(layout: Layout, user: str) -> str:
    """Shell commands that set the environment of the openstack client."""
    variables = {**layout.openstack_environment(user), "no_proxy": "*", "PYTHONWARNINGS": "ignore"}
    lines = [f"export {name}='{value}'" for name, value in variables.items()]
    lines += [f"export PATH='{VENV / 'bin'}':\"$PATH\"", "unset PYTHONDONTWRITEBYTECODE"]
    return "\n".join(lines) + "\n"


def _made(directory: Path) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    return directory


def _link_layers(layout: Layout) -> None:
    """Make the directories of configuration layers, and lead the WSGI services to theirs.

    A WSGI service has no command line for --config-dir, but oslo.config reads $HOME/PROJECT.conf.d
    and $HOME/PROGRAM.conf.d, so each WSGI service gets a home directory with links in it.
    """
    computes = [host.compute for host in layout.hosts]
    for service in ("keystone", "placement"):
        _made(layout.layers(service))
    for_group(layout.layers(GLANCE), GLANCE)
    for service in ("nova", *NOVA_SERVICES, *computes):
        for_group(layout.layers(service), NOVA)
    links = {
        "keystone": {"keystone": "keystone"},
        "placement": {"placement": "placement"},
        "glance": {"glance": "glance"},
        "nova-api": {"nova": "nova", "nova-api-os-compute": "nova-api"},
    }
    for service, names in links.items():
        for program, layer in names.items():
            link = _made(wsgi_home(layout, service)) / f"{program}.conf.d"
            if not link.is_symlink():
                link.symlink_to(layout.layers(layer))


def wsgi_home(layout: Layout, service: str) -> Path:
    """$HOME of a WSGI service."""
    return layout.etc / "wsgi" / service


def service_user(layout: Layout) -> dict[str, object]:
    """How a service authenticates to another one."""
    return {
        "auth_type": "password",
        "auth_url": layout.auth_url,
        "username": "svc",
        "password": layout.password,
        "project_name": "service",
        "user_domain_name": "Default",
        "project_domain_name": "Default",
        "region_name": REGION,
    }


def keystone_authtoken(layout: Layout) -> dict[str, object]:
    """How a service checks the tokens of its callers."""
    return {
        "www_authenticate_uri": layout.url(layout.ports.keystone, "/"),
        **service_user(layout),
        "service_token_roles": "service",
        "service_token_roles_required": True,
    }


def keystone(layout: Layout) -> Sections:
    """keystone.conf"""
    directory = layout.etc / "keystone"
    return {
        "DEFAULT": {"use_stderr": True},
        "database": {"connection": layout.database_url("keystone")},
        "token": {"provider": "fernet", "expiration": 86400},
        "fernet_tokens": {"key_repository": directory / "fernet"},
        "credential": {"key_repository": directory / "credential"},
        "identity": {"password_hash_rounds": 4},
    }


def placement(layout: Layout) -> Sections:
    """placement.conf"""
    return {
        "DEFAULT": {"use_stderr": True},
        "api": {"auth_strategy": "keystone"},
        "placement_database": {"connection": layout.database_url("placement")},
        "keystone_authtoken": keystone_authtoken(layout),
    }


def glance(layout: Layout) -> Sections:
    """glance-api.conf"""
    return {
        "DEFAULT": {
            "use_stderr": True,
            "transport_url": layout.transport_url,
            "enabled_backends": "file:file",
            "enabled_import_methods": "[glance-direct,web-download]",
            "worker_self_reference_url": layout.url(layout.ports.glance),
            "show_image_direct_url": False,
        },
        "database": {"connection": layout.database_url("glance")},
        "glance_store": {"default_backend": "file"},
        "file": {"filesystem_store_datadir": layout.images},
        "os_glance_staging_store": {"filesystem_store_datadir": layout.home / "staging"},
        "os_glance_tasks_store": {"filesystem_store_datadir": layout.home / "tasks"},
        "paste_deploy": {
            "flavor": "keystone",
            "config_file": VENV / "etc" / "glance" / "glance-api-paste.ini",
        },
        "oslo_concurrency": {"lock_path": layout.home / "lock"},
        "keystone_authtoken": keystone_authtoken(layout),
    }


def glance_import() -> Sections:
    """glance-image-import.conf; web-download may fetch from this machine, from any port."""
    return {
        "image_import_opts": {"image_import_plugins": "[no_op]"},
        "import_filtering_opts": {
            "allowed_schemes": "[http,https]",
            "allowed_hosts": "[127.0.0.1,localhost]",
            "allowed_ports": "[]",
        },
    }


def nova(layout: Layout) -> Sections:
    """nova.conf, common to all of Nova's services."""
    credentials = service_user(layout)
    helper = VENV / "bin" / "privsep-helper"
    helper_command = f"sudo {helper} --config-file {layout.etc / 'nova' / 'nova.conf'}"
    unlimited = ("instances", "cores", "ram", "metadata_items", "injected_files", "server_groups",
                 "server_group_members", "key_pairs")  # fmt: skip
    return {
        "DEFAULT": {
            "use_stderr": True,
            "state_path": layout.state,
            "transport_url": layout.transport_url,
            "compute_driver": "libvirt.LibvirtDriver",
            "allow_resize_to_same_host": True,
            "force_config_drive": True,
            "flat_injected": False,
            "vif_plugging_is_fatal": False,
            "vif_plugging_timeout": 0,
            "heal_instance_info_cache_interval": -1,
            "shutdown_timeout": 20,
            # By default nova-compute takes three minutes to stop.
            "graceful_shutdown_timeout": 6,
            "manager_shutdown_timeout": 3,
        },
        "conductor": {"workers": 1},
        "scheduler": {"workers": 1},
        "quota": dict.fromkeys(unlimited, -1),
        "glance": {"api_servers": layout.url(layout.ports.glance)},
        "placement": credentials,
        "neutron": credentials,
        "service_user": {"send_service_user_token": True, **credentials},
        "vnc": {"enabled": False},
        "spice": {"enabled": False},
        "workarounds": {"disable_rootwrap": True},
        "oslo_concurrency": {"lock_path": layout.home / "lock"},
        "nova_sys_admin": {"helper_command": helper_command},
        "privsep_osbrick": {"helper_command": helper_command},
        "keystone_authtoken": keystone_authtoken(layout),
    }


def nova_databases(layout: Layout) -> Sections:
    """What Nova's services have but nova-compute, which is not to know a database."""
    return {
        "api_database": {"connection": layout.database_url("nova_api")},
        "database": {"connection": layout.database_url("nova_cell1")},
    }


def scheduler() -> Sections:
    """The scheduler maps a new compute host into its cell by itself, without Nova's random wait."""
    return {
        "DEFAULT": {"periodic_fuzzy_delay": 0},
        "scheduler": {"discover_hosts_in_cells_interval": 2},
    }


def compute(layout: Layout, host: Host) -> Sections:
    """What nova-compute of one host has of its own, except the kind of virtualization."""
    return {
        "DEFAULT": {
            "host": host.hostname,
            "my_ip": host.address,
            "state_path": host.state,
            "instances_path": layout.instances,
        },
        "libvirt": {
            "connection_uri": f"qemu+unix:///system?socket={host.libvirt_socket}",
            "images_type": "qcow2",
        },
        "oslo_concurrency": {"lock_path": layout.home / f"lock{host.suffix}"},
    }


def virtualization(layout: Layout, kvm: bool) -> None:
    """Write which kind of guests the computes run: KVM's, or TCG's without a CPU model."""
    options = {"virt_type": "kvm"} if kvm else {"virt_type": "qemu", "cpu_mode": "none"}
    put(layout.etc / "nova" / "virtualization.conf", render({"libvirt": options}))


def rabbit(layout: Layout) -> None:
    """The broker listens on loopback only, and knows the one user of the cloud."""
    settings = {
        "listeners.tcp.1": f"127.0.0.1:{layout.ports.rabbit}",
        "default_user": "openstack",
        "default_pass": layout.password,
        "vm_memory_high_watermark.absolute": "1GB",
        "disk_free_limit.absolute": "50MB",
        "log.file": "false",
        "log.console": "true",
        "log.console.level": "warning",
        "log.console.use_colors": "off",
        # Asking for a queue that is not there yet, to see whether a service is ready, is an error.
        "log.channel.level": "critical",
    }
    directory = layout.etc / "rabbitmq"
    put(directory / "rabbitmq.conf", "".join(f"{k} = {v}\n" for k, v in settings.items()))
    put(directory / "rabbitmq-env.conf", "")
    put(directory / "enabled_plugins", "[].\n")


def _sudoers(layout: Layout) -> None:
    """What nova may do as root: Nova's own helper, and be known on the other host."""
    commands = [VENV / "bin" / "privsep-helper", *sorted((TOOLS / "remote").iterdir())]
    put(layout.etc / "sudoers", "".join(f"{line}\n" for line in (
        "Defaults !use_pty, env_reset, secure_path=/usr/sbin:/usr/bin:/sbin:/bin",
        f'Defaults env_keep += "{CLOUD_TAG} {SERVICE_TAG} PYTHONWARNINGS"',
        "root ALL=(ALL) ALL",
        *(f"{NOVA} ALL=(root) NOPASSWD: {command}" for command in commands))), 0o440)


def _host_names(layout: Layout) -> None:
    """Where a host's name leads: an address for libvirt, a pid file for tools/cloud/remote."""
    lines = ["127.0.0.1 localhost", *(f"{host.address} {host.hostname}" for host in layout.hosts)]
    # It is bound over /etc/hosts, so it stays the same file.
    if not layout.host_names.exists() or layout.host_names.read_text().splitlines() != lines:
        layout.host_names.write_text("".join(f"{line}\n" for line in lines))
        layout.host_names.chmod(0o644)
    for host in layout.hosts:
        for name in (host.address, host.hostname):
            link = _made(layout.ssh_hosts) / name
            if not link.is_symlink():
                link.symlink_to(layout.run / f"{host.machine}.pid")


def libvirt(host: Host) -> None:
    """The private directories of a libvirtd, and its configuration."""
    for name in ("run", "lib", "log", "cache"):
        _made(host.libvirt / name)
    etc = host.libvirt / "etc"
    if not (etc / "libvirt.conf").exists():
        shutil.copytree("/etc/libvirt", etc, symlinks=True, dirs_exist_ok=True)
    shutil.rmtree(etc / "qemu" / "networks" / "autostart", ignore_errors=True)
    daemon = {
        "auth_unix_ro": '"none"',
        "auth_unix_rw": '"none"',
        "unix_sock_group": '"libvirt"',
        "unix_sock_rw_perms": '"0770"',
        # Within the hosts' own network only.
        "listen_tls": "0",
        "listen_tcp": "1",
        "listen_addr": f'"{host.address}"',
        "auth_tcp": '"none"',
        "host_uuid": f'"{host.uuid}"',
        "log_outputs": '"2:stderr"',
    }
    first_port = MIGRATION_PORT + (host.number - 1) * MIGRATION_PORTS
    # User, group and owners of files are as Debian has them. Guests' output goes to files, as there
    # is no virtlogd here.
    qemu = {
        "user": f'"{QEMU}"',
        "group": f'"{QEMU}"',
        "security_driver": '"none"',
        "dynamic_ownership": "1",
        # libvirt's default on the first host. What a disk is given back to then is not every
        # operator's: without trusted extended attributes it is root's as well.
        "remember_owner": "1" if host.number == 1 else "0",
        "cgroup_controllers": "[ ]",
        "namespaces": "[ ]",
        "stdio_handler": '"file"',
        # The hosts have their network in common: none may take what another one listens on.
        "migration_port_min": str(first_port),
        "migration_port_max": str(first_port + MIGRATION_PORTS - 1),
    }
    for file, settings in (("libvirtd.conf", daemon), ("qemu.conf", qemu)):
        put(etc / file, "".join(f"{name} = {value}\n" for name, value in settings.items()))
