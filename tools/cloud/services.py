"""The services of the cloud: how each is started and how one knows that it is ready."""

import contextlib
import functools
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tools.cloud import config, records
from tools.cloud.layout import (
    COMPUTE_GROUPS,
    GLANCE,
    MOST_HOSTS,
    NOVA,
    TOOLS,
    VENV,
    Host,
    Layout,
)
from tools.cloud.processes import (
    ProcessInfo,
    all_processes,
    http_answers,
    port_open,
    socket_answers,
)

# One network for all hosts, with nothing but loopback: libvirt's migrations stay in there.
NETWORK = "machine-network"
NETWORK_SCRIPT = "ip link set lo up; exec sleep infinity"

# A host is a mount namespace in which directories of its own lie over the paths that all share.
# What is mounted there later comes to its services, which have namespaces of their own again.
MACHINE_SCRIPT = """
hostname "$1"; shift
while [ $# -gt 0 ]; do
    # A machine without KVM has none to give.
    [ ! -e "$1" ] || { [ -e "$2" ] || mkdir -p "$2"; mount --bind "$1" "$2"; }
    shift 2
done
mount --make-rshared /
exec sleep infinity
"""

# Namespaces are entered by the pid of who holds them, which is known only when all is running.
ENTER_SCRIPT = """
read -r machine rest <"$1"; [ -z "$2" ] || read -r network rest <"$2"; shift 2
exec nsenter --target "$machine" --mount --uts ${network:+--net=/proc/$network/ns/net} -- "$@"
"""


def confined(layout: Layout, user: str = "", unit: Path | None = None,
             groups: Sequence[str] = (), **pairs: str) -> list[str]:  # fmt: skip
    """What makes a command that of a user, with the restrictions of a unit; see confine.py.

    :param user: if it is not the unit's; of root's the command stays as it is.
    :param pairs: ``bind`` or ``mount``, as SOURCE=TARGET.
    """
    if user == "root":
        return []
    argv = [str(VENV / "bin" / "python"), "-P", str(TOOLS / "confine.py")]
    argv += [f"--show={path}" for path in layout.shown]
    argv += [f"--user={user}"] if user else []
    argv += [f"--unit={unit}"] if unit else []
    argv += [f"--groups={','.join(groups)}"] if groups else []
    argv += [f"--{name}={pair}" for name, pair in pairs.items()]
    return [*argv, "--"]


@dataclass(frozen=True)
class Service:
    """A service: its command, what it adds to the environment, how one knows that it is ready."""

    name: str
    argv: list[str]
    env: Mapping[str, str]
    ready: Callable[[], bool] | None = None
    what: str = ""
    ports: tuple[int, ...] = ()


def service_table(layout: Layout) -> dict[str, Service]:
    """All services, in the order in which they start."""
    ports = layout.ports
    stub = [str(VENV / "bin" / "python"), "-P", str(TOOLS / "network_stub.py")]
    services = [
        _epmd(layout),
        _rabbit(layout),
        Service(
            NETWORK,
            ["unshare", "--net", "--", "sh", "-ec", NETWORK_SCRIPT],
            layout.environment(),
            functools.partial(_holds, layout, NETWORK),
        ),
        *(_machine(layout, host) for host in layout.hosts),
        *(_libvirtd(layout, host) for host in layout.hosts),
        _wsgi(layout, "keystone", "keystone.wsgi.api", ports.keystone),
        _wsgi(layout, "placement", "placement.wsgi.api", ports.placement),
        _wsgi(layout, "glance", "glance.wsgi.api", ports.glance, str(layout.access_log)),
        Service(
            "network-stub",
            [*stub, "--port", str(ports.network)],
            layout.environment(),
            functools.partial(http_answers, ports.network),
            f"HTTP on port {ports.network}",
            (ports.network,),
        ),
        _wsgi(layout, "nova-api", "nova.wsgi.osapi_compute", ports.nova_api),
        _nova(layout, "conductor", "databases.conf"),
        _nova(layout, "scheduler", "databases.conf", "scheduler.conf"),
        *(_compute(layout, host) for host in layout.hosts),
    ]
    return {service.name: service for service in services}


def _epmd(layout: Layout) -> Service:
    port = layout.ports.epmd
    return Service(
        "epmd",
        ["epmd", "-address", "127.0.0.1", "-port", str(port)],
        layout.environment(),
        functools.partial(port_open, port),
        f"port {port}",
        (port,),
    )


def _rabbit(layout: Layout) -> Service:
    directory = layout.home / "rabbit"
    etc = layout.etc / "rabbitmq"
    port = layout.ports.rabbit
    variables = {
        "HOME": directory,
        "RABBITMQ_CONF_ENV_FILE": etc / "rabbitmq-env.conf",
        "RABBITMQ_CONFIG_FILE": etc / "rabbitmq.conf",
        "RABBITMQ_ENABLED_PLUGINS_FILE": etc / "enabled_plugins",
        "RABBITMQ_NODENAME": "rabbit@localhost",
        "RABBITMQ_MNESIA_BASE": directory / "mnesia",
        "RABBITMQ_LOG_BASE": directory / "log",
        "RABBITMQ_PID_FILE": directory / "pid",
        "RABBITMQ_DIST_PORT": layout.ports.rabbit_distribution,
        "ERL_CRASH_DUMP_SECONDS": 0,
        "ERL_EPMD_ADDRESS": "127.0.0.1",
        "ERL_EPMD_PORT": layout.ports.epmd,
        "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "-kernel inet_dist_use_interface {127,0,0,1}",
        # Like this the script becomes the Erlang machine instead of waiting for it.
        "RABBITMQ_ALLOW_INPUT": "1",
        "RABBITMQ_SERVER_START_ARGS": "-noinput +S 1:1 +sbwt none",
    }
    return Service(
        "rabbit",
        ["/usr/lib/rabbitmq/bin/rabbitmq-server"],
        layout.environment({name: str(value) for name, value in variables.items()}),
        functools.partial(port_open, port),
        f"port {port}",
        (port, layout.ports.rabbit_distribution),
    )


def _machine(layout: Layout, host: Host) -> Service:
    places = {
        host.libvirt / "run": "/run/libvirt",
        host.libvirt / "etc": "/etc/libvirt",
        host.libvirt / "lib": "/var/lib/libvirt",
        host.libvirt / "log": "/var/log/libvirt",
        host.libvirt / "cache": "/var/cache/libvirt",
        layout.host_names: "/etc/hosts",
        host.instances: layout.instances,
        host.gateway: layout.gateway,
        layout.kvm: "/dev/kvm",
    }
    binds = [str(path) for pair in places.items() for path in pair]
    return Service(
        host.machine,
        ["unshare", "--uts", "--", *confined(layout), "sh", "-ec", MACHINE_SCRIPT, "sh",
         host.hostname, *binds],
        layout.environment(),
        functools.partial(_holds, layout, host.machine),
    )  # fmt: skip


def _holds(layout: Layout, name: str) -> bool:
    """Whether a holder of namespaces has set them up: it then sleeps."""
    with contextlib.suppress(OSError):
        pid = (layout.run / f"{name}.pid").read_text().split()[0]
        return Path(f"/proc/{pid}/comm").read_text() == "sleep\n"
    return False


def on_host_command(layout: Layout, host: Host, *argv: str, network: bool = False) -> list[str]:
    """A command as a command in a host's namespaces."""
    pid_files = [str(layout.run / f"{host.machine}.pid"),
                 str(layout.run / f"{NETWORK}.pid") if network else ""]  # fmt: skip
    return ["sh", "-ec", ENTER_SCRIPT, "sh", *pid_files, *argv]


def _libvirtd(layout: Layout, host: Host) -> Service:
    daemon = ("libvirtd", "--listen", "-p", "/run/libvirt/libvirtd.pid")
    return Service(
        host.libvirtd,
        on_host_command(layout, host, *daemon, network=True),
        layout.environment(),
        functools.partial(socket_answers, host.libvirt_socket),
        f"socket {host.libvirt_socket}",
    )


def _wsgi(layout: Layout, name: str, module: str, port: int, access_log: str = "") -> Service:
    project = "nova" if name == "nova-api" else name
    argv = [str(VENV / "bin" / "gunicorn"), "--config", str(TOOLS / "gunicorn_conf.py")]
    argv += ["--bind", f"127.0.0.1:{port}"]
    argv += ["--access-logfile", access_log] if access_log else []
    env = {
        **layout.openstack_process_environment(),
        f"OS_{project.upper()}_CONFIG_DIR": str(layout.etc / project),
        "OS_NOVA_CONFIG_FILES": "api-paste.ini;nova.conf;databases.conf",
        "HOME": str(config.wsgi_home(layout, name)),
    }
    ready = functools.partial(http_answers, port)
    what = f"HTTP on port {port}"
    user = {"nova": NOVA, "glance": GLANCE}.get(project, "root")
    argv = [*confined(layout, user), *argv, f"{module}:application"]
    return Service(name, argv, env, ready, what, (port,))


def _nova_command(layout: Layout, name: str, program: str, *own_files: str) -> list[str]:
    argv = [str(VENV / "bin" / program)]
    for file in ("nova.conf", *own_files):
        argv += ["--config-file", str(layout.etc / "nova" / file)]
    for layer in ("nova", name):
        argv += ["--config-dir", str(layout.layers(layer))]
    return argv


def _nova(layout: Layout, name: str, *own_files: str) -> Service:
    return Service(
        name,
        [*confined(layout, NOVA), *_nova_command(layout, name, f"nova-{name}", *own_files)],
        layout.openstack_process_environment(),
        functools.partial(records.queue_served, layout, name),
        f"consumer of queue {name}",
    )


def _compute(layout: Layout, host: Host) -> Service:
    files = (f"{host.compute}.conf", "virtualization.conf")
    environment = layout.openstack_process_environment()
    # Before the real ssh and scp: those of the cloud, which reach the other host.
    environment["PATH"] = f"{TOOLS / 'remote'}:{environment['PATH']}"
    environment["HOME"] = str(layout.user_home(NOVA))
    # sudo stands between nova and Nova's own helper, as everywhere.
    sudoers = f"{layout.etc / 'sudoers'}=/etc/sudoers"
    user = confined(layout, NOVA, groups=COMPUTE_GROUPS, bind=sudoers)
    return Service(
        host.compute,
        on_host_command(layout, host, *user,
               *_nova_command(layout, host.compute, "nova-compute", *files)),
        environment,
        functools.partial(_compute_ready, layout, host),
        "registration with the conductor",
    )


def _compute_ready(layout: Layout, host: Host) -> bool:
    pid_file = layout.run / f"{host.compute}.pid"
    return records.compute_registered(layout, host, pid_file.stat().st_mtime) and (
        records.queue_served(layout, f"compute.{host.hostname}")
    )


def on_host(host: Host, pid: int) -> bool:
    """Whether a process sees this host's private directories, as all of its processes do."""
    try:
        return os.path.samefile(f"/proc/{pid}/root/run/libvirt", Path(host.libvirt, "run"))
    except OSError:
        return False


def guest_processes(home: Path) -> list[ProcessInfo]:
    """All QEMU processes on a cloud's hosts, whoever started them."""
    hosts = [Host(home, number + 1) for number in range(MOST_HOSTS)]
    return [
        process
        for process in all_processes()
        if process.name.startswith("qemu-system")
        and any(on_host(host, process.pid) for host in hosts)
    ]


def is_guest(pid: int) -> bool:
    """Whether a QEMU runs a guest: libvirtd starts others, without a machine, to ask what it can.

    False if it has ended.
    """
    try:
        return b"\0-machine\0none," not in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False
